"""The product with a matrix of four bits in plain torch on any device, float64 included."""

import torch
import torch.nn.functional as F

from mamba_kernels.four_bit.matrix import FourBitMatrix
from mamba_kernels.precision import accumulator


def four_bit_product(
    x: torch.Tensor,
    matrix: FourBitMatrix,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    invariant: bool = False,
) -> None:
    """Compute out = x W^T + bias with the weights that the codes stand for; sums are at least float32.

    `x` is [n, inputs]; `bias` is [outputs]; `out` is [n, outputs], written; `invariant` says whether a row's
    bits must not depend on the number of rows.
    """
    wide = accumulator(x.dtype)
    added = None if bias is None else bias.to(wide)
    weight = matrix.plain(wide)
    if not invariant:
        out.copy_(F.linear(x.to(wide), weight, added))
        return
    for row in range(len(x)):
        out[row : row + 1] = F.linear(x[row : row + 1].to(wide), weight, added)
