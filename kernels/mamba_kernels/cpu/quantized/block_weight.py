"""`BlockWeight`: a matrix in panels of blocks, each with one float16 scale for some inputs of an output.

`QuantizedWeight`, `Int4Weight` and `Int4ZerosWeight` differ in the numbers of a block and in how these are
packed. The first two also quantize a matrix of floating point numbers.
"""

from abc import ABC, abstractmethod
from typing import Self

import torch
import torch.nn.functional as F

from mamba_kernels.cpu.packed_linear import PANEL, Rows, keep_rows, split_panels
from mamba_kernels.cpu.quantized.block_numbers import BLOCK, BlockNumbers

QUAD = 4
"""Inputs of an output that lie side by side, and that one lane of a vector register multiplies at once."""


class BlockWeight(ABC):
    """A matrix [outputs, inputs] of few bits: panels of blocks, each block with a scale of its own.

    It replaces the original, which is no longer needed.
    """

    packing: int
    number_bytes: int
    """Bytes of the numbers of one output in a block."""
    outputs: int
    inputs: int
    dtype: torch.dtype
    """Type of the product's inputs and results."""
    panels: torch.Tensor
    """[panels, blocks, scales and numbers], sixteen outputs side by side."""
    order: torch.Tensor | None = None
    """Place in a row of x of each input of the matrix, [inputs] int32; None = the same order."""

    @classmethod
    def of_numbers(cls, stored: BlockNumbers) -> Self:
        """Pack numbers that are quantized already, and that lie in the range of this class."""
        weight = cls.__new__(cls)
        weight.fill(stored)
        return weight

    def fill(self, stored: BlockNumbers) -> None:
        """Allocate this matrix and pack the numbers, scales and zeros of `stored` into it."""
        self._reserve(*stored.shape, stored.dtype)
        self.order = stored.order
        blocks = self.panels.shape[1]
        scales = stored.of_blocks(stored.scales)
        zeros = None if stored.zeros is None else stored.of_blocks(stored.zeros)
        first = 0
        for part, whole in split_panels(self.panels, stored.numbers, blocks * BLOCK):
            missing = len(part) * PANEL - len(whole)
            rows = slice(first, first + len(whole))
            first += len(whole)
            numbers = F.pad(whole, (0, -self.inputs % BLOCK, 0, missing)).view(-1, PANEL, blocks, BLOCK)
            self._scales(part).copy_(_by_panel(scales[rows], missing))
            if zeros is not None:
                self._store_zeros(_by_panel(zeros[rows], missing), part)
            self._store(numbers.permute(3, 0, 2, 1), part)

    def _reserve(self, outputs: int, inputs: int, dtype: torch.dtype) -> None:
        self.outputs, self.inputs, self.dtype = outputs, inputs, dtype
        blocks, panels = -(-inputs // BLOCK), -(-outputs // PANEL)
        self.panels = torch.empty(panels, blocks, PANEL * (2 + self.number_bytes), dtype=torch.uint8)

    @classmethod
    @abstractmethod
    def _store(cls, numbers: torch.Tensor, out: torch.Tensor) -> None:
        """Store numbers [BLOCK, panels, blocks, PANEL] in `out`, a part of the panels."""

    def _store_zeros(self, zeros: torch.Tensor, out: torch.Tensor) -> None:
        """Store the zeros [panels, blocks, PANEL] in `out`. Only one form has zeros."""
        raise NotImplementedError

    @abstractmethod
    def _numbers_of(self, blocks: torch.Tensor, members: torch.Tensor, lane: torch.Tensor) -> torch.Tensor:
        """Return the numbers [n, blocks, BLOCK] of n outputs.

        Output i is lane `lane[i]` of the panel `blocks[members[i]]`.
        """

    def rows(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return the rows `outputs` [n] of the quantized matrix, [n, inputs]."""
        blocks, lane = self.panels[outputs // PANEL], outputs % PANEL
        members = torch.arange(len(outputs))
        numbers = self._numbers_of(blocks, members, lane)
        scaled = numbers * self._scales(blocks)[members, :, lane].float().unsqueeze(-1)
        whole = scaled.flatten(1)[:, : self.inputs].to(self.dtype)
        if self.order is None:
            return whole
        return torch.empty_like(whole).index_copy_(1, self.order.long(), whole)

    @staticmethod
    def _scales(panels: torch.Tensor) -> torch.Tensor:
        """Return the scales [..., PANEL] as a view."""
        return panels[..., : 2 * PANEL].view(torch.float16)


class FittedWeight(BlockWeight):
    """A matrix of few bits whose numbers and scales are chosen here to be close to given float weights."""

    def __init__(self, weight: torch.Tensor, packed: Rows = keep_rows) -> None:
        """Pack `weight`, float32 or bfloat16 on the CPU; call `packed` with rows once they are packed.

        Inputs and results of the product have the type of `weight`.
        """
        self._reserve(weight.shape[0], weight.shape[1], weight.dtype)
        blocks = self.panels.shape[1]
        for part, whole in split_panels(self.panels, weight, blocks * BLOCK):
            padding = (0, -self.inputs % BLOCK, 0, len(part) * PANEL - len(whole))
            self._pack(F.pad(whole.float(), padding).view(len(part), PANEL, blocks, BLOCK), part)
            packed(whole)

    @abstractmethod
    def _pack(self, weight: torch.Tensor, out: torch.Tensor) -> None:
        """Pack the float32 weights [panels, PANEL, blocks, BLOCK] into `out`, a part of the panels."""


def _by_panel(values: torch.Tensor, missing: int) -> torch.Tensor:
    """Return values [outputs, blocks] as [panels, blocks, PANEL], with zeros for `missing` outputs."""
    return F.pad(values, (0, 0, 0, missing)).view(-1, PANEL, values.shape[1]).transpose(1, 2)
