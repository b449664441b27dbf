"""A matrix as numbers of four bits with one float16 scale for 32 inputs of an output: 4.5 bits a weight."""

import torch
import torch.nn.functional as F

from mamba_kernels.cpu.packed_linear import PANEL, Rows, keep_rows, split_panels
from mamba_kernels.cpu.quantized.int8_weight import BLOCK, QUAD
from mamba_kernels.cpu.structures import INT4

SMALLEST, LARGEST = -8, 7
ENDS = (-8.5, -7.0)
"""Numbers that are tried for the weight of a block that is farthest from zero, before rounding."""
QUADS = BLOCK // QUAD
BYTES_PER_BLOCK = PANEL * (2 + BLOCK // 2)
"""Bytes of a block in a panel: the scales, then two inputs a byte, sixteen outputs side by side."""


class Int4Weight:
    """A matrix [outputs, inputs] in panels of four bits; it replaces the original.

    A weight is scale * n, where n is in -8..7. Several numbers are tried for the weight of a block that is
    farthest from zero; the block takes the scale with the least squared error. A block that contains NaN or
    infinity has no finite scale. Rows that the matrix multiplies are converted to int8, as by int8 weights.
    """

    packing = INT4

    def __init__(self, weight: torch.Tensor, packed: Rows = keep_rows) -> None:
        """Pack `weight`, float32 or bfloat16 on the CPU; call `packed` with rows once they are packed.

        Inputs and results of the product have the type of `weight`.
        """
        self.outputs, self.inputs = weight.shape
        self.dtype = weight.dtype
        blocks, panels = -(-self.inputs // BLOCK), -(-self.outputs // PANEL)
        self.panels = torch.empty(panels, blocks, BYTES_PER_BLOCK, dtype=torch.uint8)
        """[panels, blocks, scales and weights]"""
        for part, whole in split_panels(self.panels, weight, blocks * BLOCK):
            self._pack(whole, part)
            packed(whole)

    def _pack(self, weight: torch.Tensor, out: torch.Tensor) -> None:
        panels, blocks, _ = out.shape
        padding = (0, -self.inputs % BLOCK, 0, panels * PANEL - len(weight))
        whole = F.pad(weight.float(), padding).view(panels, PANEL, blocks, BLOCK)
        # Reductions over the first dimension are vectorised; over the last one they take much longer.
        scale, number = quantized(whole.permute(3, 0, 2, 1).contiguous())
        stored = (number - SMALLEST).to(torch.uint8).view(QUADS // 2, 2, QUAD, panels, blocks, PANEL)
        low, high = stored.unbind(1)
        self._scales(out).copy_(scale)
        self._numbers(out).copy_((low | high << 4).permute(2, 3, 0, 4, 1))

    @staticmethod
    def _scales(panels: torch.Tensor) -> torch.Tensor:
        """Return the scales [..., PANEL] as a view."""
        return panels[..., : 2 * PANEL].view(torch.float16)

    @staticmethod
    def _numbers(panels: torch.Tensor) -> torch.Tensor:
        """Return the bytes [..., QUADS / 2, PANEL, QUAD] as a view: even quads in their low halves."""
        return panels[..., 2 * PANEL :].view(*panels.shape[:-1], QUADS // 2, PANEL, QUAD)

    def rows(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return the rows `outputs` [n] of the quantized matrix, [n, inputs]."""
        blocks, lane = self.panels[outputs // PANEL], outputs % PANEL
        members = torch.arange(len(outputs))
        both = self._numbers(blocks)[members, :, :, lane]
        numbers = torch.stack([both & 15, both >> 4], dim=3).flatten(2).float() + SMALLEST
        scaled = numbers * self._scales(blocks)[members, :, lane].float().unsqueeze(-1)
        return scaled.flatten(1)[:, : self.inputs].to(self.dtype)


def quantized(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the float16 scale [...] of blocks [BLOCK, ...] and their numbers in -8..7, as float32."""
    high, low = blocks.amax(0), blocks.amin(0)
    farthest = torch.where(high > -low, high, low)
    scale, least = farthest / SMALLEST, torch.zeros_like(farthest)
    for end in ENDS:
        number = _numbers_for(blocks, farthest / end)
        product = (blocks * number).sum(0)
        squares = number.square_().sum(0)
        # The best scale for these numbers leaves an error of the block's squares minus this.
        explained = product.square() / squares
        better = explained > least
        scale, least = torch.where(better, product / squares, scale), torch.where(better, explained, least)
    scale = scale.half()
    return scale, _numbers_for(blocks, scale.float())


def _numbers_for(blocks: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (blocks * scale.reciprocal()).nan_to_num_(0.0).round_().clamp_(SMALLEST, LARGEST)
