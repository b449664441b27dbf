"""Who computes: torch, the C++ kernels of a CPU or Triton's. The one place that decides, once per model.

`MAMBASERVE_KERNELS` chooses: `auto` (the default: Triton's on a GPU, on a CPU the C++ ones with its
quickest instructions), `torch` (no kernels of ours), `triton`, or the name of an instruction set.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch

from mamba_kernels.cpu.library import (
    INSTRUCTION_SETS,
    VARIABLE,
    Library,
    UnknownKernels,
    has_to_be_built,
    library,
)
from mamba_kernels.cpu.packed_linear import KINDS
from mamba_kernels.dispatch.operators import REFERENCE, Operators, cpu_operators, triton_operators

INTERPRETER = "TRITON_INTERPRET"
TRITON = "triton"
"""Name of the backend of Triton's kernels."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Backend:
    """What computes a model."""

    name: str
    """As logs and metrics show it: torch, triton, or the instruction set of the C++ kernels."""
    operators: Operators
    library: Library | None = None
    """The C++ kernels where they compute."""


TORCH = Backend("torch", REFERENCE)


def backend_for(
    device: torch.device, dtype: torch.dtype, environment: Mapping[str, str] = os.environ
) -> Backend:
    """The backend of a model of that type there. Raises UnknownKernels."""
    wanted = environment.get(VARIABLE, "auto")
    if wanted == "torch":
        return TORCH
    if wanted == TRITON or (wanted == "auto" and device.type == "cuda"):
        return _triton(device, dtype, environment, wanted)
    if device.type != "cpu":
        raise UnknownKernels(
            f"{VARIABLE}={wanted}: the device is {device.type}; choose auto, torch or triton"
        )
    if dtype not in KINDS:
        _warn_of("CPU", dtype)
        return TORCH
    chosen = library()
    return TORCH if chosen is None else Backend(chosen.name, cpu_operators(chosen), chosen)


def compiles_first(
    device: torch.device, dtype: torch.dtype, environment: Mapping[str, str] = os.environ
) -> bool:
    """Whether `backend_for` has to compile the C++ kernels, which takes a minute."""
    return device.type == "cpu" and dtype in KINDS and has_to_be_built(environment)


def _triton(device: torch.device, dtype: torch.dtype, environment: Mapping[str, str], wanted: str) -> Backend:
    if device.type == "cpu" and environment.get(INTERPRETER) != "1":
        raise UnknownKernels(
            f"{VARIABLE}={wanted} needs a CUDA device; choose auto, torch, {', '.join(INSTRUCTION_SETS)}, "
            f"or set {INTERPRETER}=1 to run the kernels in Triton's interpreter, which is for tests"
        )
    try:
        operators = triton_operators()
    except ImportError as why:
        if wanted != "auto":
            raise UnknownKernels(f"{VARIABLE}={wanted}: {why}; install triton") from why
        log.warning("the Triton kernels are not used, torch computes: %s; install triton", why)
        return TORCH
    if dtype == torch.float64:
        _warn_of("Triton", dtype)
        return TORCH
    return Backend(TRITON, operators)


@cache
def _warn_of(kernels: str, dtype: torch.dtype) -> None:
    log.warning("the %s kernels have no %s: torch computes", kernels, str(dtype).removeprefix("torch."))
