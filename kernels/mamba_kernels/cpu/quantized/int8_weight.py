"""A matrix as int8 with one float16 scale for 32 inputs of an output: half the bytes of bfloat16."""

import torch

from mamba_kernels.cpu.packed_linear import PANEL
from mamba_kernels.cpu.quantized.block_numbers import BLOCK
from mamba_kernels.cpu.quantized.block_weight import QUAD, FittedWeight
from mamba_kernels.cpu.structures import INT8

LARGEST = 127


class QuantizedWeight(FittedWeight):
    """A matrix [outputs, inputs] in panels of int8; it replaces the original.

    A weight is scale * n, where n is in -127..127 and scale is the largest weight of its block over 127, so
    its error is at most half a scale: 0.4 % of that largest weight. A block that contains NaN or infinity has
    no finite scale. Rows that the matrix multiplies are converted to int8 in the same way, with one scale for
    32 inputs (docs/notes/kernels-cpu.md). Numbers of a checkpoint may be -128.
    """

    packing = INT8
    number_bytes = BLOCK

    def _pack(self, weight: torch.Tensor, out: torch.Tensor) -> None:
        scale = (weight.abs().amax(-1) / LARGEST).half()
        number = (weight / scale.float().unsqueeze(-1)).nan_to_num(0.0).round_().clamp_(-LARGEST, LARGEST)
        self._scales(out).copy_(scale.transpose(1, 2))
        self._store(number.permute(3, 0, 2, 1), out)

    @classmethod
    def _store(cls, numbers: torch.Tensor, out: torch.Tensor) -> None:
        # [BLOCK, panels, blocks, PANEL]
        quads = numbers.unflatten(0, (BLOCK // QUAD, QUAD))
        cls._numbers(out).copy_(quads.permute(2, 3, 0, 4, 1))

    @staticmethod
    def _numbers(panels: torch.Tensor) -> torch.Tensor:
        """Return the int8 numbers [..., BLOCK / QUAD, PANEL, QUAD] as a view."""
        return panels[..., 2 * PANEL :].view(torch.int8).view(*panels.shape[:-1], BLOCK // QUAD, PANEL, QUAD)

    def _numbers_of(self, blocks: torch.Tensor, members: torch.Tensor, lane: torch.Tensor) -> torch.Tensor:
        return self._numbers(blocks)[members, :, :, lane].flatten(2).float()
