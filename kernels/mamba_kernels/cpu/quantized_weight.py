"""A matrix as int8 with one float16 scale for 32 inputs of an output: half the bytes of bfloat16 to read."""

import torch
import torch.nn.functional as F

from mamba_kernels.cpu.packed_linear import PANEL, Rows, keep_rows, split_panels
from mamba_kernels.cpu.structures import INT8

BLOCK = 32
"""Inputs that share a scale."""
QUAD = 4
"""Inputs of an output side by side: what one lane multiplies at once."""
LARGEST = 127
BYTES_PER_BLOCK = PANEL * (2 + BLOCK)
"""Of one panel: scales, then the inputs, sixteen outputs side by side."""


class QuantizedWeight:
    """A matrix [outputs, inputs] in panels of int8; takes the place of the original.

    A weight is scale * n with n in -127..127 and scale the largest of its block over 127, so it is off by
    half a scale at most: 0.4 % of that largest one. A block with a weight that is no number has none. Rows
    that it multiplies are made int8 in the same way, 32 inputs with a scale (docs/notes/kernels-cpu.md).
    """

    packing = INT8

    def __init__(self, weight: torch.Tensor, packed: Rows = keep_rows) -> None:
        """weight: float32 or bfloat16, on the CPU; `dtype` of rows and products is its own. `packed` is told
        which of its rows were, as they are."""
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
        """[..., PANEL]"""
        return panels[..., : 2 * PANEL].view(torch.float16)

    @staticmethod
    def _numbers(panels: torch.Tensor) -> torch.Tensor:
        """[..., BLOCK / QUAD, PANEL, QUAD]"""
        return panels[..., 2 * PANEL :].view(torch.int8).view(*panels.shape[:-1], BLOCK // QUAD, PANEL, QUAD)

    def rows(self, outputs: torch.Tensor) -> torch.Tensor:
        """The rows `outputs` [n] of the matrix as they are multiplied, [n, inputs]."""
        blocks, lane = self.panels[outputs // PANEL], outputs % PANEL
        members = torch.arange(len(outputs))
        numbers = self._numbers(blocks)[members, :, :, lane].flatten(2).float()
        scaled = numbers * self._scales(blocks)[members, :, lane].float().unsqueeze(-1)
        return scaled.flatten(1)[:, : self.inputs].to(self.dtype)
