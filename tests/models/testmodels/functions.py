"""The formulas of activations, in plain torch."""

from collections.abc import Callable

import torch

from mamba_kernels.activate import Function

FORMULAS: dict[Function, Callable[[torch.Tensor], torch.Tensor]] = {
    Function.SQUARED_RELU: lambda x: x.clamp(min=0) ** 2,
    Function.RELU: lambda x: x.clamp(min=0),
    Function.SILU: lambda x: x / (1 + torch.exp(-x)),
    Function.SIGMOID: lambda x: 1 / (1 + torch.exp(-x)),
    Function.GELU: lambda x: x * torch.special.ndtr(x),
    Function.GELU_TANH: lambda x: x / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))),
}
