"""What is counted of a GPU's work while serving, by the names of `EngineStats`: both should stay at 0."""

from collections.abc import Callable

import torch

from mamba_kernels.dispatch.backend import TRITON, Backend

Counters = Callable[[], dict[str, float]]


def device_counters(device: torch.device, backend: Backend) -> Counters:
    """Begin to count; nothing where there is no such device and no such compiler."""
    counters: dict[str, Callable[[], int]] = {}
    if backend.name == TRITON:
        from mamba_kernels.triton_support.compilations import Compilations

        compilations = Compilations()
        counters["jit_compilations_after_ready_total"] = lambda: compilations.count
    if device.type == "cuda":
        from mamba_server.engine.host_syncs import HostSyncs

        syncs = HostSyncs()
        counters["host_syncs_total"] = lambda: syncs.count
    return lambda: {name: count() for name, count in counters.items()}
