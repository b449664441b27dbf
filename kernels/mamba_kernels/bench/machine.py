"""Limits of this machine, measured before the kernels: the speed of copies and of matrix products."""

import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

import torch

from mamba_kernels.bench.timing import seconds_of


@dataclass(frozen=True, slots=True)
class Machine:
    """Speeds that a machine reaches, with which kernels are compared, and its versions of software."""

    device: str
    date: str
    python: str
    versions: dict[str, str]
    copy_bytes_per_second: float
    """Bytes read and written per second by a copy far larger than any cache."""
    flops_per_second: float
    """Operations per second of a product of bfloat16 matrices."""

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def measure(device: torch.device) -> Machine:
    """Measure how fast the machine copies and multiplies now; other work on it makes it slower."""
    gpu = device.type == "cuda"
    source = torch.zeros((1 << 30) if gpu else (1 << 27), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy = seconds_of(lambda: target.copy_(source), device)
    moved = 2 * source.numel()
    n = 8192 if gpu else 1024
    left = torch.ones(n, n, dtype=torch.bfloat16, device=device)
    product = seconds_of(lambda: left @ left, device)
    return Machine(
        device=torch.cuda.get_device_name(device) if gpu else platform.processor() or platform.machine(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        python=platform.python_version(),
        versions={name: _version(name) for name in ("torch", "triton", "numpy", "mamba_ssm")},
        copy_bytes_per_second=moved / copy,
        flops_per_second=2 * n**3 / product,
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
