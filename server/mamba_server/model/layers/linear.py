"""The product y = x W^T + b. In batch-invariant mode it is computed in tiles of a fixed number of rows.

A CPU without bfloat16 instructions multiplies element by element, so that 64 rows take 64 times as long as
one. There, products of more than a few rows convert the weights to float32, block by block.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F

MIN_CONVERTED_ROWS = 16
"""Number of rows from which converting the weights saves more time than it costs."""
_BLOCK_WEIGHTS = 1 << 20
"""Maximum number of weights that are held converted at once: 4 MiB."""


@lru_cache(1)
def emulates_bfloat16() -> bool:
    """Return whether this CPU has no instructions for products of bfloat16."""
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return supported is not None and not supported()


@dataclass(frozen=True, slots=True)
class Linear:
    """Multiplies rows by an ordinary matrix with torch, and adds a bias."""

    weight: torch.Tensor
    """Matrix of the product, [outputs, inputs]."""
    bias: torch.Tensor | None
    row_tile: int = 0
    """Rows of a tile; 0 = one product of all rows, whose rounding depends on the number of rows."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product [T, outputs] of x: [T, inputs]."""
        if not self.row_tile:
            return self._product(x)
        rows, tile = x.shape[0], self.row_tile
        padded = F.pad(x, (0, 0, 0, -rows % tile))
        parts = [self._product(part) for part in padded.split(tile)]
        return torch.cat(parts)[:rows]

    def _product(self, x: torch.Tensor) -> torch.Tensor:
        if (
            self.weight.dtype is torch.bfloat16
            and x.shape[0] >= MIN_CONVERTED_ROWS
            and not x.is_cuda
            and emulates_bfloat16()
        ):
            return self._converted_product(x)
        return F.linear(x, self.weight, self.bias)

    def _converted_product(self, x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(x.shape[0], self.weight.shape[0])
        wide = x.float()
        start = 0
        for block in self.weight.split(max(1, _BLOCK_WEIGHTS // self.weight.shape[1])):
            end = start + block.shape[0]
            bias = None if self.bias is None else self.bias[start:end].float()
            out[:, start:end] = F.linear(wide, block.float(), bias)
            start = end
        return out
