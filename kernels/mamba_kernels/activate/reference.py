"""Activations in plain torch on any device, float64 included. Called by MLPs and by gated attention."""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from mamba_kernels.activate.function import Function

_IN_PLACE: dict[Function, Callable[[torch.Tensor], object]] = {
    Function.SQUARED_RELU: lambda x: F.relu(x, inplace=True).square_(),
    Function.RELU: lambda x: F.relu(x, inplace=True),
    Function.SILU: lambda x: F.silu(x, inplace=True),
    Function.SIGMOID: torch.Tensor.sigmoid_,
    Function.GELU: lambda x: x.copy_(F.gelu(x)),
    Function.GELU_TANH: lambda x: x.copy_(F.gelu(x, approximate="tanh")),
}


def activate(x: torch.Tensor, function: Function, factor: torch.Tensor | None = None) -> None:
    """Replace x by function(x) * factor in place, or by function(x) if there is no factor.

    `x` and `factor` are [T, f]; rows may be strided, so that both may be halves of one product.
    """
    _IN_PLACE[function](x)
    if factor is not None:
        x.mul_(factor)
