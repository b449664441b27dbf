"""FP8 products in plain torch on any device: the numbers that GPUs compute with, summed in float32.

Layers call these with `--quantization fp8`: a norm quantizes the rows that it returns, and other rows are
quantized before their product. Rounding and saturation are those of a GPU, bit for bit; the order of sums is
not.
"""

import torch

from mamba_kernels.fp8.matrix import GROUP, Fp8Matrix, Fp8Rows, quantized
from mamba_kernels.rms_norm.reference import rms_norm

MOST_CONVERTED = 1 << 22
"""Weights that are held as float32 at once."""


def fp8_rows(x: torch.Tensor, groups: int) -> Fp8Rows:
    """Round rows x [T, inputs] to FP8.

    `groups` is 1 for a scale of each row, or the number of groups of `GROUP` inputs that a row has.
    """
    return quantized(x, groups)


def fp8_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    added: torch.Tensor | None,
    dtype: torch.dtype,
    groups: int,
) -> tuple[torch.Tensor, Fp8Rows]:
    """Return `rms_norm` of x [T, d], and the result rounded to FP8 as `fp8_rows` does.

    x becomes x + added, if there is `added`. The result has the type `dtype` before it is rounded to FP8.
    """
    normed = rms_norm(x, weight, eps, added, dtype)
    return normed, quantized(normed, groups)


def fp8_product(
    rows: Fp8Rows, matrix: Fp8Matrix, bias: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """Return rows W^T + bias, [T, outputs] of type `dtype`, with sums in float32.

    `rows` are [T, inputs] and have as many groups as `matrix`, which is [outputs, inputs]; `bias` is
    [outputs].
    """
    outputs, inputs = matrix.shape
    out = torch.empty(len(rows.numbers), outputs, dtype=dtype, device=rows.numbers.device)
    grouped = matrix.groups > 1
    left = rows.numbers.to(torch.float32)
    for first in range(0, outputs, step := max(1, MOST_CONVERTED // max(1, inputs))):
        part = matrix.select(slice(first, first + step))
        right = part.numbers.to(torch.float32)
        if grouped:
            total = _of_groups(left, rows.scales, right, part.scales)
        else:
            total = (left @ right.t()) * rows.scales * part.scales.t()
        if bias is not None:
            total += bias[first : first + step]
        out[:, first : first + step] = total
    return out


def _of_groups(
    left: torch.Tensor, left_scales: torch.Tensor, right: torch.Tensor, right_scales: torch.Tensor
) -> torch.Tensor:
    """Return left right^T in float32, with a scale for each group of inputs of a row of either matrix."""
    total = left.new_zeros(len(left), len(right))
    for group in range(right_scales.shape[1]):
        inputs = slice(group * GROUP, (group + 1) * GROUP)
        part = left[:, inputs] @ right[:, inputs].t()
        total += part * left_scales[:, group, None] * right_scales[:, group]
    return total
