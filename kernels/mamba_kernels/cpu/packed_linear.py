"""The product y = activation(x W^T + b), with weights packed in the order in which the kernels read them."""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F

from mamba_kernels.arguments import check
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
"""Outputs side by side in a panel, one for each lane of a vector register."""
CPU = torch.device("cpu")
KINDS = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16}
ACTIVATIONS = {"": IDENTITY, "relu": RELU, "relu2": RELU_SQUARED, "silu": SILU, "swish": SILU}
"""Activations applied to a product before it is rounded, by their names in Hugging Face configurations."""
PAIR = {torch.float32: 1, torch.bfloat16: 2}
"""Number of inputs of one output that lie side by side in 32 bits."""
_BLOCK_WEIGHTS = 1 << 20
"""Number of weights packed at once."""

Rows = Callable[[torch.Tensor], None]
"""Callback that receives rows [n, inputs] of a matrix."""


def keep_rows(_: torch.Tensor) -> None:
    """Do nothing: used where the caller keeps the memory of rows that have been packed."""


class PackedMatrix(Protocol):
    """A matrix [outputs, inputs] whose numbers lie in memory as the C++ product reads them."""

    outputs: int
    inputs: int
    dtype: torch.dtype
    """Type of the product's inputs and results."""
    packing: int
    """Number of the form in which the numbers are packed, as C++ knows it."""
    panels: torch.Tensor
    """The packed numbers: panels of PANEL outputs side by side."""
    order: torch.Tensor | None
    """Place in a row of x of each input of the matrix, [inputs] int32; None = the same order."""

    def rows(self, outputs: torch.Tensor) -> torch.Tensor: ...


def split_panels(
    panels: torch.Tensor, weight: torch.Tensor, width: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield blocks of panels with the rows of the weight that they hold, so that packing needs little memory.

    `width` is the number of inputs of a row in a panel, padding included.
    """
    panels_per_block = max(1, _BLOCK_WEIGHTS // (width * PANEL))
    for first in range(0, len(panels), panels_per_block):
        part = panels[first : first + panels_per_block]
        yield part, weight[first * PANEL : (first + len(part)) * PANEL]


class PackedWeight:
    """A matrix [outputs, inputs], stored in panels for the C++ product: blocks of outputs side by side.

    It replaces the original, which is no longer needed.
    """

    packing = WHOLE
    order: torch.Tensor | None = None

    def __init__(self, weight: torch.Tensor, packed: Rows = keep_rows) -> None:
        """Pack `weight`, float32 or bfloat16 on the CPU; call `packed` with rows once they are packed."""
        self.outputs, self.inputs = weight.shape
        self.dtype = weight.dtype
        pair = PAIR[weight.dtype]
        steps, panels = -(-self.inputs // pair), -(-self.outputs // PANEL)
        self.panels = weight.new_empty(panels, steps, PANEL, pair)
        """The matrix, [panels, steps, PANEL, pair]."""
        for part, whole in split_panels(self.panels, weight, steps * pair):
            missing = (0, -self.inputs % pair, 0, len(part) * PANEL - len(whole))
            padded = F.pad(whole, missing) if any(missing) else whole
            part.copy_(padded.reshape(len(part), PANEL, steps, pair).permute(0, 2, 1, 3))
            packed(whole)

    def rows(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return the rows `outputs` [n] of the matrix, [n, inputs], as an embedding looks them up."""
        return self.panels[outputs // PANEL, :, outputs % PANEL].flatten(1)[:, : self.inputs]


class JoinedMatrix:
    """Several packed matrices that multiply the same inputs; a result has their outputs one after another."""

    def __init__(self, parts: Sequence[PackedMatrix]) -> None:
        self.parts = tuple(parts)
        self.outputs = sum(part.outputs for part in parts)
        self.inputs = parts[0].inputs
        self.dtype = parts[0].dtype


class PackedLayers:
    """Holds the C++ structures that describe one packed weight.

    There is one, or one for each matrix of a `JoinedMatrix`.
    """

    def __init__(
        self, weight: PackedMatrix | JoinedMatrix, bias: torch.Tensor | None, activation: int
    ) -> None:
        self._kept = weight, bias
        parts = weight.parts if isinstance(weight, JoinedMatrix) else (weight,)
        self._layers = (LinearLayer * len(parts))()
        first = 0
        for index, part in enumerate(parts):
            following = ctypes.addressof(self._layers[index + 1]) if index + 1 < len(parts) else None
            self._layers[index] = LinearLayer(
                packed=part.panels.data_ptr(),
                bias=None if bias is None else bias[first:].data_ptr(),
                inputs=part.inputs,
                outputs=weight.outputs,
                kind=KINDS[part.dtype],
                packing=part.packing,
                activation=activation,
                order=None if part.order is None else part.order.data_ptr(),
                rest=following,
                part=part.outputs,
            )
            first += part.outputs

    def change_by(self, changes: int) -> None:
        """Let decode steps add changes by adapters to the product's results.

        `changes` is the address of the `AdapterChanges`, which the caller keeps alive.
        """
        self._layers[0].changes = changes

    @property
    def first(self) -> LinearLayer:
        """Structure of the first matrix, which leads to the others; valid as long as this object lives."""
        return self._layers[0]


class PackedLinear:
    """Multiplies rows by a packed weight, adds a bias, and applies an activation, in one C++ call."""

    def __init__(
        self,
        library: Library,
        weight: PackedMatrix | JoinedMatrix,
        bias: torch.Tensor | None,
        activation: str = "",
    ) -> None:
        """Prepare the call.

        `bias` is [outputs] in the type of the weight; None = none. `activation` is one of ACTIVATIONS.
        """
        self.weight = weight
        self._call = library.linear
        self._layers = PackedLayers(weight, bias, ACTIVATIONS[activation])
        self.address = ctypes.addressof(self._layers.first)
        """Address of the structure, valid as long as this object lives."""

    def change_by(self, changes: int) -> None:
        """Let decode steps add changes by adapters to the product's results.

        `changes` is the address of the `AdapterChanges`, which the caller keeps alive.
        """
        self._layers.change_by(changes)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the product of x, [T, inputs] with dense rows in the type of the weight: [T, outputs].

        A row has the same bits alone and among others, and with any number of threads. Raises WrongArgument.
        """
        if x.dtype is not self.weight.dtype or x.stride(-1) != 1:
            x = x.to(self.weight.dtype).contiguous()
        check("x", x, (None, self.weight.inputs), device=CPU)
        rows = x.shape[0]
        out = x.new_empty(rows, self.weight.outputs)
        self._call(self.address, x.data_ptr(), x.stride(0), rows, out.data_ptr())
        return out
