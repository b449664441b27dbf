"""Who computes: the C++ kernels or torch. The one place that decides, asked once per model."""

import logging
from functools import cache

import torch

from mamba_kernels.cpu.library import Library, library
from mamba_kernels.cpu.packed_linear import KINDS

log = logging.getLogger(__name__)


def library_for(device: torch.device, dtype: torch.dtype) -> Library | None:
    """The kernels for a model of that type there; None = torch. Raises UnknownKernels."""
    if device.type != "cpu":
        return None
    if dtype not in KINDS:
        _warn_of(dtype)
        return None
    return library()


def shown(chosen: Library | None) -> str:
    """As logs and metrics name it: the instruction set, or torch."""
    return "torch" if chosen is None else chosen.name


@cache
def _warn_of(dtype: torch.dtype) -> None:
    log.warning("the CPU kernels have no %s: torch computes", str(dtype).removeprefix("torch."))
