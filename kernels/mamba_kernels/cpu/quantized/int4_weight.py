"""A matrix as numbers of four bits with one float16 scale for 32 inputs of an output: 4.5 bits a weight.

`Int4ZerosWeight` also has, for each of these scales, the number that stands for zero, as checkpoints of AWQ
and GPTQ do: 4.75 bits a weight.
"""

import torch

from mamba_kernels.cpu.packed_linear import PANEL, PackedMatrix
from mamba_kernels.cpu.quantized.block_numbers import BLOCK, BlockNumbers
from mamba_kernels.cpu.quantized.block_weight import QUAD, BlockWeight, FittedWeight
from mamba_kernels.cpu.quantized.int8_weight import QuantizedWeight
from mamba_kernels.cpu.structures import INT4, INT4_ZEROS
from mamba_kernels.four_bit.fit import SMALLEST, fit_integers

QUADS = BLOCK // QUAD


class Int4Weight(FittedWeight):
    """A matrix [outputs, inputs] in panels of four bits; it replaces the original.

    A weight is scale * n, where n is in -8..7. Several numbers are tried for the weight of a block that is
    farthest from zero; the block takes the scale with the least squared error. A block that contains NaN or
    infinity has no finite scale. Rows that the matrix multiplies are converted to int8, as by int8 weights.
    """

    packing = INT4
    number_bytes = BLOCK // 2

    def _pack(self, weight: torch.Tensor, out: torch.Tensor) -> None:
        # Reductions over the first dimension are vectorised; over the last one they take much longer.
        scale, number = fit_integers(weight.permute(3, 0, 2, 1).contiguous())
        self._scales(out).copy_(scale)
        self._store(number, out)

    @classmethod
    def _store(cls, numbers: torch.Tensor, out: torch.Tensor) -> None:
        cls._numbers(out).copy_(_halves((numbers - SMALLEST).to(torch.uint8)))

    @staticmethod
    def _numbers(panels: torch.Tensor) -> torch.Tensor:
        """Return the bytes [..., QUADS / 2, PANEL, QUAD] as a view: even quads in their low halves."""
        return panels[..., 2 * PANEL :].view(*panels.shape[:-1], QUADS // 2, PANEL, QUAD)

    def _numbers_of(self, blocks: torch.Tensor, members: torch.Tensor, lane: torch.Tensor) -> torch.Tensor:
        return _whole(self._numbers(blocks)[members, :, :, lane]) + SMALLEST


class Int4ZerosWeight(BlockWeight):
    """A matrix [outputs, inputs] in panels of four bits with zeros; weights are never fitted to it.

    A weight is scale * (n - zero), where n is in 0..15. Each block has one scale and one zero, in 0..16.
    """

    packing = INT4_ZEROS
    number_bytes = BLOCK // 2 + 1

    @classmethod
    def _store(cls, numbers: torch.Tensor, out: torch.Tensor) -> None:
        cls._numbers(out).copy_(_halves(numbers))

    def _store_zeros(self, zeros: torch.Tensor, out: torch.Tensor) -> None:
        self._zeros(out).copy_(zeros)

    @staticmethod
    def _zeros(panels: torch.Tensor) -> torch.Tensor:
        """Return the zeros [..., PANEL] as a view."""
        return panels[..., 2 * PANEL : 3 * PANEL]

    @staticmethod
    def _numbers(panels: torch.Tensor) -> torch.Tensor:
        return panels[..., 3 * PANEL :].view(*panels.shape[:-1], QUADS // 2, PANEL, QUAD)

    def _numbers_of(self, blocks: torch.Tensor, members: torch.Tensor, lane: torch.Tensor) -> torch.Tensor:
        zeros = self._zeros(blocks)[members, :, lane].float().unsqueeze(-1)
        return _whole(self._numbers(blocks)[members, :, :, lane]) - zeros


def pack_numbers(stored: BlockNumbers) -> PackedMatrix:
    """Pack the numbers, unchanged, as int8, as four bits, or as four bits with zeros if there are zeros."""
    if stored.zeros is not None:
        return Int4ZerosWeight.of_numbers(stored)
    return (Int4Weight if stored.bits == 4 else QuantizedWeight).of_numbers(stored)


def _halves(numbers: torch.Tensor) -> torch.Tensor:
    """Return uint8 numbers [BLOCK, panels, blocks, PANEL] as bytes, two numbers in each."""
    low, high = numbers.reshape(QUADS // 2, 2, QUAD, *numbers.shape[1:]).unbind(1)
    return (low | high << 4).permute(2, 3, 0, 4, 1)


def _whole(halves: torch.Tensor) -> torch.Tensor:
    """Return bytes [n, blocks, QUADS / 2, QUAD] as float32 numbers [n, blocks, BLOCK] in 0..15."""
    return torch.stack([halves & 15, halves >> 4], dim=3).flatten(2).float()
