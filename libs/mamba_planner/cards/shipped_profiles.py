"""The resource profiles that come with every operator and with the command line. Pure data.

GPUs are selected by the label nvidia.com/gpu.product of NVIDIA's feature discovery, which names one card in
one form, never a shared one or a slice: all engines of a deployment are alike. CPU and memory fit next to one
GPU on the smallest machines that clouds offer with it; weights pass through memory in pieces.
"""

from mamba_api.quantity import Quantity
from mamba_api.v1alpha1.profiles import Profiles, ResourceProfile
from mamba_planner.cards.gpu_sizes import MIB_OF

PRODUCT = "nvidia.com/gpu.product"


def _cpu(cpu: int, memory: str) -> ResourceProfile:
    return ResourceProfile(gpus=0, cpu=Quantity(str(cpu)), memory=Quantity(memory))


def _gpu(card: str, product: str, cpu: int, memory: str) -> ResourceProfile:
    return ResourceProfile(
        gpus=1,
        gpu_resource="nvidia.com/gpu",
        cpu=Quantity(str(cpu)),
        memory=Quantity(memory),
        device_memory=Quantity(f"{MIB_OF[card]}Mi"),
        node_selector={PRODUCT: product},
    )


SHIPPED: Profiles = {
    "cpu-small": _cpu(2, "4Gi"),
    "cpu-large": _cpu(16, "64Gi"),
    "nvidia-l4": _gpu("L4", "NVIDIA-L4", 3, "12Gi"),
    "nvidia-l40s": _gpu("L40S", "NVIDIA-L40S", 3, "24Gi"),
    "nvidia-a100-80gb": _gpu("A100 80GB", "NVIDIA-A100-SXM4-80GB", 8, "64Gi"),
    "nvidia-a100-80gb-pcie": _gpu("A100 80GB", "NVIDIA-A100-80GB-PCIe", 8, "64Gi"),
    "nvidia-h100-80gb": _gpu("H100", "NVIDIA-H100-80GB-HBM3", 8, "64Gi"),
    "nvidia-h100-80gb-pcie": _gpu("H100", "NVIDIA-H100-PCIe", 8, "64Gi"),
    "nvidia-h200": _gpu("H200", "NVIDIA-H200", 8, "64Gi"),
}
"""Profiles by name. There is none for GPUs without bfloat16, such as the T4: the kernels are compiled for
Ampere and later."""
