"""A matrix as numbers of four bits with one float16 scale for 32 inputs of an output: 4.5 bits a weight."""

import torch

from mamba_kernels.cpu.packed_linear import PANEL
from mamba_kernels.cpu.quantized.block_weight import BLOCK, QUAD, BlockWeight
from mamba_kernels.cpu.structures import INT4

SMALLEST, LARGEST = -8, 7
ENDS = (-8.5, -7.0)
"""Numbers that are tried for the weight of a block that is farthest from zero, before rounding."""
QUADS = BLOCK // QUAD


class Int4Weight(BlockWeight):
    """A matrix [outputs, inputs] in panels of four bits; it replaces the original.

    A weight is scale * n, where n is in -8..7. Several numbers are tried for the weight of a block that is
    farthest from zero; the block takes the scale with the least squared error. A block that contains NaN or
    infinity has no finite scale. Rows that the matrix multiplies are converted to int8, as by int8 weights.
    """

    packing = INT4
    number_bytes = BLOCK // 2

    def _pack(self, weight: torch.Tensor, out: torch.Tensor) -> None:
        panels, blocks, _ = out.shape
        # Reductions over the first dimension are vectorised; over the last one they take much longer.
        scale, number = quantized(weight.permute(3, 0, 2, 1).contiguous())
        stored = (number - SMALLEST).to(torch.uint8).view(QUADS // 2, 2, QUAD, panels, blocks, PANEL)
        low, high = stored.unbind(1)
        self._scales(out).copy_(scale)
        self._numbers(out).copy_((low | high << 4).permute(2, 3, 0, 4, 1))

    @staticmethod
    def _numbers(panels: torch.Tensor) -> torch.Tensor:
        """Return the bytes [..., QUADS / 2, PANEL, QUAD] as a view: even quads in their low halves."""
        return panels[..., 2 * PANEL :].view(*panels.shape[:-1], QUADS // 2, PANEL, QUAD)

    def _numbers_of(self, blocks: torch.Tensor, members: torch.Tensor, lane: torch.Tensor) -> torch.Tensor:
        both = self._numbers(blocks)[members, :, :, lane]
        return torch.stack([both & 15, both >> 4], dim=3).flatten(2).float() + SMALLEST


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
