"""y = activation(x W^T + b) with weights in the order in which the product reads them."""

import ctypes
from typing import Protocol

import torch
import torch.nn.functional as F

from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.structures import (
    BFLOAT16,
    FLOAT32,
    IDENTITY,
    RELU,
    RELU_SQUARED,
    SILU,
    WHOLE,
    LinearLayer,
)

PANEL = 16
"""Outputs side by side: one a lane."""
KINDS = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16}
ACTIVATIONS = {"": IDENTITY, "relu": RELU, "relu2": RELU_SQUARED, "silu": SILU, "swish": SILU}
"""Of a product, before it is rounded; by their names in Hugging Face configurations."""
PAIR = {torch.float32: 1, torch.bfloat16: 2}
"""Inputs of one output side by side: 32 bits."""


class Packed(Protocol):
    """A matrix [outputs, inputs] as the product reads it."""

    outputs: int
    inputs: int
    dtype: torch.dtype
    """Of rows and products."""
    packing: int
    panels: torch.Tensor

    def rows(self, outputs: torch.Tensor) -> torch.Tensor: ...


class PackedWeight:
    """A matrix [outputs, inputs] in panels; takes the place of the original, which nobody needs any more."""

    packing = WHOLE

    def __init__(self, weight: torch.Tensor) -> None:
        """weight: float32 or bfloat16, on the CPU."""
        self.outputs, self.inputs = weight.shape
        self.dtype = weight.dtype
        pair = PAIR[weight.dtype]
        steps, panels = -(-self.inputs // pair), -(-self.outputs // PANEL)
        if (panels * PANEL, steps * pair) != weight.shape:
            weight = F.pad(weight, (0, -self.inputs % pair, 0, -self.outputs % PANEL))
        self.panels = weight.reshape(panels, PANEL, steps, pair).permute(0, 2, 1, 3).contiguous()
        """[panels, steps, PANEL, pair]"""

    def rows(self, outputs: torch.Tensor) -> torch.Tensor:
        """The rows `outputs` [n] of the matrix, [n, inputs]: what an embedding looks up."""
        return self.panels[outputs // PANEL, :, outputs % PANEL].flatten(1)[:, : self.inputs]


class PackedLinear:
    """A packed weight with its bias and what becomes of the sums."""

    def __init__(
        self, library: Library, weight: Packed, bias: torch.Tensor | None, activation: str = ""
    ) -> None:
        """bias: [outputs] in the type of the weight; activation: one of ACTIVATIONS."""
        self.weight = weight
        self._kept = bias
        self._call = library.linear
        self._layer = LinearLayer(
            packed=weight.panels.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
            inputs=weight.inputs,
            outputs=weight.outputs,
            kind=KINDS[weight.dtype],
            packing=weight.packing,
            activation=ACTIVATIONS[activation],
        )
        self._address = ctypes.addressof(self._layer)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [T, inputs], each row in one piece, in the type of the weight -> [T, outputs].

        A row has the same bits alone and among others, and with any number of threads.
        """
        if x.dtype is not self.weight.dtype or x.stride(1) != 1:
            x = x.to(self.weight.dtype).contiguous()
        rows = x.shape[0]
        out = x.new_empty(rows, self.weight.outputs)
        self._call(self._address, x.data_ptr(), x.stride(0), rows, out.data_ptr())
        return out
