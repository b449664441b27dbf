"""A matrix as int8 with one float16 scale for 32 inputs of an output: half the bytes of bfloat16."""

import torch
import torch.nn.functional as F

from mamba_kernels.cpu.packed_linear import PANEL, Rows, keep_rows, split_panels
from mamba_kernels.cpu.structures import INT8

BLOCK = 32
"""Inputs that share a scale."""
QUAD = 4
"""Inputs of an output that lie side by side and that one lane multiplies at once."""
LARGEST = 127
BYTES_PER_BLOCK = PANEL * (2 + BLOCK)
"""Bytes of a block in a panel: the scales, then the inputs, sixteen outputs side by side."""


class QuantizedWeight:
    """A matrix [outputs, inputs] in panels of int8; it replaces the original.

    A weight is scale * n, where n is in -127..127 and scale is the largest weight of its block over 127, so
    its error is at most half a scale: 0.4 % of that largest weight. A block that contains NaN or infinity has
    no finite scale. Rows that the matrix multiplies are converted to int8 in the same way, with one scale for
    32 inputs (docs/notes/kernels-cpu.md).
    """

    packing = INT8

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
        scale = (whole.abs().amax(-1) / LARGEST).half()
        number = (whole / scale.float().unsqueeze(-1)).nan_to_num(0.0).round_().clamp_(-LARGEST, LARGEST)
        quads = number.view(panels, PANEL, blocks, BLOCK // QUAD, QUAD)
        self._scales(out).copy_(scale.transpose(1, 2))
        self._numbers(out).copy_(quads.permute(0, 2, 3, 1, 4))

    @staticmethod
    def _scales(panels: torch.Tensor) -> torch.Tensor:
        """Return the scales [..., PANEL] as a view."""
        return panels[..., : 2 * PANEL].view(torch.float16)

    @staticmethod
    def _numbers(panels: torch.Tensor) -> torch.Tensor:
        """Return the int8 numbers [..., BLOCK / QUAD, PANEL, QUAD] as a view."""
        return panels[..., 2 * PANEL :].view(torch.int8).view(*panels.shape[:-1], BLOCK // QUAD, PANEL, QUAD)

    def rows(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return the rows `outputs` [n] of the quantized matrix, [n, inputs]."""
        blocks, lane = self.panels[outputs // PANEL], outputs % PANEL
        members = torch.arange(len(outputs))
        numbers = self._numbers(blocks)[members, :, :, lane].flatten(2).float()
        scaled = numbers * self._scales(blocks)[members, :, lane].float().unsqueeze(-1)
        return scaled.flatten(1)[:, : self.inputs].to(self.dtype)
