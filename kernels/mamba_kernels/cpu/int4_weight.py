"""A matrix as numbers of four bits with one float16 scale for 32 inputs of an output: 4.5 bits a weight."""

import torch
import torch.nn.functional as F

from mamba_kernels.cpu.packed_linear import PANEL, Rows, keep_rows, split_panels
from mamba_kernels.cpu.quantized_weight import BLOCK, QUAD
from mamba_kernels.cpu.structures import INT4

SMALLEST, LARGEST = -8, 7
QUADS = BLOCK // QUAD
BYTES_PER_BLOCK = PANEL * (2 + BLOCK // 2)
"""Bytes of a block in a panel: the scales, then two inputs a byte, sixteen outputs side by side."""


class Int4Weight:
    """A matrix [outputs, inputs] in panels of four bits; it replaces the original.

    A weight is scale * n, where n is in -8..7. The weight of a block that is farthest from zero is first taken
    as -8 times the scale, so that all sixteen numbers are in use; then the scale is replaced by the one with
    the least squared error for these numbers, and the numbers follow it. A block that contains NaN or infinity
    has no finite scale. Rows that the matrix multiplies are converted to int8, as int8 weights have it.
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
        scale, number = quantized(whole)
        stored = (number - SMALLEST).to(torch.uint8).view(panels, PANEL, blocks, QUADS // 2, 2, QUAD)
        low, high = stored.unbind(4)
        self._scales(out).copy_(scale.transpose(1, 2))
        self._numbers(out).copy_((low | high << 4).permute(0, 2, 3, 1, 4))

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
    """Return the float16 scale [...] of blocks [..., BLOCK] and their numbers in -8..7, as float32."""
    first = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True)) / SMALLEST
    number = _numbers_for(blocks, first)
    squares = number.square().sum(-1, keepdim=True)
    best = torch.where(squares > 0, (blocks * number).sum(-1, keepdim=True) / squares, first)
    scale = best.half()
    return scale.squeeze(-1), _numbers_for(blocks, scale.float())


def _numbers_for(blocks: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (blocks / scale).nan_to_num_(0.0).round_().clamp_(SMALLEST, LARGEST)
