"""Choice of the backend of a model: torch, the C++ kernels of a CPU, or Triton kernels.

The decision is made here alone, once per model. `mamba_kernels.kernel_choice` describes the syntax of
`MAMBASERVE_KERNELS`.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch

from mamba_kernels.cpu.library import Library, has_to_be_built, library
from mamba_kernels.cpu.packed_linear import KINDS
from mamba_kernels.dispatch.operators import (
    OPERATORS,
    REFERENCE,
    Operators,
    cpu_operators,
    triton_operators,
)
from mamba_kernels.kernel_choice import (
    AUTO,
    INSTRUCTION_SETS,
    VARIABLE,
    KernelChoice,
    UnknownKernels,
)

INTERPRETER = "TRITON_INTERPRET"
TRITON = "triton"
"""Name of the backend of the Triton kernels."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Backend:
    """Says what computes a model: torch, Triton kernels or C++ kernels, with functions for all operators."""

    name: str
    """Name in logs and metrics: torch, triton, or the instruction set of the C++ kernels."""
    operators: Operators
    library: Library | None = None
    """The C++ kernels, if they compute."""


TORCH = Backend("torch", REFERENCE)


def backend_for(
    device: torch.device, dtype: torch.dtype, environment: Mapping[str, str] = os.environ
) -> Backend:
    """Choose the backend of a model of type `dtype` on `device`. Raises UnknownKernels."""
    choice = KernelChoice.of(environment)
    kernels = choice.kernels
    if unknown := [name for name in choice.left_out if name not in OPERATORS]:
        raise UnknownKernels(
            f"{VARIABLE}: there is no operator {unknown[0]} to leave out; choose from {', '.join(OPERATORS)}"
        )
    if kernels == TORCH.name:
        return TORCH
    if kernels == TRITON or (kernels == AUTO and device.type == "cuda"):
        return _triton(device, dtype, environment, choice)
    if device.type != "cpu":
        raise UnknownKernels(
            f"{VARIABLE}={kernels}: the device is {device.type}; choose auto, torch or triton"
        )
    if dtype not in KINDS:
        _warn_of("CPU", dtype)
        return TORCH
    cpp_library = library()
    if cpp_library is None:
        return TORCH
    if choice.left_out:
        raise UnknownKernels(
            f"{VARIABLE}: {choice.left_out[0]} cannot be left out on a CPU, whose C++ kernels compute whole "
            "layers; choose auto, or torch for all operators"
        )
    return Backend(cpp_library.name, cpu_operators(cpp_library), cpp_library)


def compiles_first(
    device: torch.device, dtype: torch.dtype, environment: Mapping[str, str] = os.environ
) -> bool:
    """Return whether `backend_for` has to compile the C++ kernels, which takes a minute."""
    return device.type == "cpu" and dtype in KINDS and has_to_be_built(environment)


def _triton(
    device: torch.device, dtype: torch.dtype, environment: Mapping[str, str], choice: KernelChoice
) -> Backend:
    kernels = choice.kernels
    if device.type == "cpu" and environment.get(INTERPRETER) != "1":
        raise UnknownKernels(
            f"{VARIABLE}={kernels} needs a CUDA device; choose auto, torch, {', '.join(INSTRUCTION_SETS)}, "
            f"or set {INTERPRETER}=1 to run the kernels in Triton's interpreter, which is for tests"
        )
    try:
        operators = triton_operators()
    except ImportError as why:
        if kernels != AUTO:
            raise UnknownKernels(f"{VARIABLE}={kernels}: {why}; install triton") from why
        log.warning("the Triton kernels are not used, torch computes: %s; install triton", why)
        return TORCH
    if dtype == torch.float64:
        _warn_of("Triton", dtype)
        return TORCH
    operators.leave_out(choice.left_out)
    if choice.left_out:
        log.info("torch computes the operators that %s leaves out: %s", VARIABLE, ", ".join(choice.left_out))
    return Backend(TRITON, operators)


@cache
def _warn_of(kernels: str, dtype: torch.dtype) -> None:
    log.warning(
        "the %s kernels do not support %s: torch computes", kernels, str(dtype).removeprefix("torch.")
    )
