"""A benchmark case: one operator at one shape, its inputs, its call, and its least traffic and work."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from mamba_kernels.dispatch.operators import Operators

Inputs = dict[str, Any]
"""Tensors by name, and plans over them."""


@dataclass(frozen=True, slots=True)
class Case:
    """One operator at one shape, to be measured."""

    operator: str
    shape: str
    """Model and sizes in words."""
    size: int
    """Number of rows, tokens or slots that are measured."""
    checked: int
    """Number, at most `size`, that is compared with the reference: float64 takes more memory and time."""
    inputs: Callable[[int], Inputs]
    """Function that builds the inputs of a size, always the same ones."""
    run: Callable[[Operators, Inputs], tuple[torch.Tensor, ...]]
    """Function that calls the operator and returns its results, those written in place included."""
    least_bytes: int
    """Bytes that `size` rows, tokens or slots move at least."""
    flops: int = 0
    """Floating point operations that `size` rows, tokens or slots take at least; 0 = only bandwidth
    counts."""
    peer: Callable[[Inputs], Callable[[], object]] | None = None
    """Function that returns the same work by another library; it raises ImportError without that library."""


def widen(value: Any) -> Any:
    """Copy a tensor for the reference, as float64 if it is floating point; return other values unchanged."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.double() if value.is_floating_point() else value.clone()


def copy_tensor(value: Any) -> Any:
    """Copy a tensor with the same strides, so that a check does not change measured data."""
    if not isinstance(value, torch.Tensor):
        return value
    copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return copy.copy_(value)
