"""One operator at one shape: how its inputs are made, how it runs, and what it must move and compute."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from mamba_kernels.dispatch.operators import Operators

Inputs = dict[str, Any]
"""By name: tensors, and plans over them."""


@dataclass(frozen=True, slots=True)
class Case:
    operator: str
    shape: str
    """For people: model and sizes."""
    size: int
    """Rows, tokens or slots that are measured."""
    checked: int
    """How many are compared with the reference in float64, which takes more memory and time."""
    inputs: Callable[[int], Inputs]
    """The same for the same size."""
    run: Callable[[Operators, Inputs], tuple[torch.Tensor, ...]]
    """Results, those written in place included."""
    least_bytes: int
    """That `size` of them move at least."""
    flops: int = 0
    """That they compute at least; 0 where bandwidth alone counts."""
    peer: Callable[[Inputs], Callable[[], object]] | None = None
    """The same work by another library. Raises ImportError where it is not there."""


def widen(value: Any) -> Any:
    """A copy for the reference: what floats is float64."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.double() if value.is_floating_point() else value.clone()


def copy_tensor(value: Any) -> Any:
    """A copy with the same strides, so that a check changes nothing that is measured."""
    if not isinstance(value, torch.Tensor):
        return value
    copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return copy.copy_(value)
