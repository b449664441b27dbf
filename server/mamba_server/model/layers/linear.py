"""y = x W^T + b. In batch-invariant mode the product is made in tiles of a fixed number of rows."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True, slots=True)
class Linear:
    weight: torch.Tensor
    """[outputs, inputs]"""
    bias: torch.Tensor | None
    row_tile: int = 0
    """0 = one product of all rows, whose rounding depends on how many there are."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [T, inputs] -> [T, outputs]."""
        if not self.row_tile:
            return F.linear(x, self.weight, self.bias)
        rows, tile = x.shape[0], self.row_tile
        padded = F.pad(x, (0, 0, 0, -rows % tile))
        parts = [F.linear(part, self.weight, self.bias) for part in padded.split(tile)]
        return torch.cat(parts)[:rows]
