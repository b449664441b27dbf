"""`BlockWeight`: a matrix in panels of blocks, each with one float16 scale for some inputs of an output.

`QuantizedWeight` and `Int4Weight` differ in the numbers of a block and in how these are packed.
"""

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F

from mamba_kernels.cpu.packed_linear import PANEL, Rows, keep_rows, split_panels

BLOCK = 32
"""Inputs that share a scale."""
QUAD = 4
"""Inputs of an output that lie side by side and that one lane multiplies at once."""


class BlockWeight(ABC):
    """A matrix [outputs, inputs] in panels of blocks; it replaces the original."""

    number_bytes: int
    """Bytes of the numbers of one output in a block."""

    def __init__(self, weight: torch.Tensor, packed: Rows = keep_rows) -> None:
        """Pack `weight`, float32 or bfloat16 on the CPU; call `packed` with rows once they are packed.

        Inputs and results of the product have the type of `weight`.
        """
        self.outputs, self.inputs = weight.shape
        self.dtype = weight.dtype
        blocks, panels = -(-self.inputs // BLOCK), -(-self.outputs // PANEL)
        self.panels = torch.empty(panels, blocks, PANEL * (2 + self.number_bytes), dtype=torch.uint8)
        """[panels, blocks, scales and numbers], sixteen outputs side by side."""
        for part, whole in split_panels(self.panels, weight, blocks * BLOCK):
            padding = (0, -self.inputs % BLOCK, 0, len(part) * PANEL - len(whole))
            self._pack(F.pad(whole.float(), padding).view(len(part), PANEL, blocks, BLOCK), part)
            packed(whole)

    @abstractmethod
    def _pack(self, weight: torch.Tensor, out: torch.Tensor) -> None:
        """Pack the float32 weights [panels, PANEL, blocks, BLOCK] into `out`, a part of the panels."""

    @abstractmethod
    def _numbers_of(self, blocks: torch.Tensor, members: torch.Tensor, lane: torch.Tensor) -> torch.Tensor:
        """Return the numbers [n, blocks, BLOCK] of one `lane` in each of the `members` of panels."""

    def rows(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return the rows `outputs` [n] of the quantized matrix, [n, inputs]."""
        blocks, lane = self.panels[outputs // PANEL], outputs % PANEL
        members = torch.arange(len(outputs))
        numbers = self._numbers_of(blocks, members, lane)
        scaled = numbers * self._scales(blocks)[members, :, lane].float().unsqueeze(-1)
        return scaled.flatten(1)[:, : self.inputs].to(self.dtype)

    @staticmethod
    def _scales(panels: torch.Tensor) -> torch.Tensor:
        """Return the scales [..., PANEL] as a view."""
        return panels[..., : 2 * PANEL].view(torch.float16)
