"""Converts weights that are stored as FP8 with scales into ordinary weights, or keeps them.

`weights` uses it while a model is loaded. It knows three layouts: one scale for a tensor (ModelOpt), one for
each row (compressed-tensors), one for each block of 128 x 128 (the FP8 of DeepSeek and Qwen). All scales are
multiplied, even those that are called an inverse.
"""

import torch

from mamba_kernels.fp8 import Fp8Matrix
from mamba_kernels.fp8.matrix import GROUP as BLOCK


def dequantize(weight: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return `weight`, [..., r, c], times `scale`, rounded once to `dtype`.

    `scale` has one element, [r] for a matrix, a shape that broadcasts such as [..., r, 1], or the shape
    [..., ceil(r / 128), ceil(c / 128)]. Raises ValueError for another shape.
    """
    factors, rows = _factors(weight, scale)
    values = torch.empty(weight.shape, dtype=dtype)
    # Converted in pieces: as float32, a large matrix would take four times its memory, twice.
    for begin in range(0, weight.shape[-2], BLOCK):
        piece = slice(begin, begin + BLOCK)
        piece_factors = factors[..., piece.start // rows : -(-piece.stop // rows), :] if rows else factors
        values[..., piece, :] = weight[..., piece, :].to(torch.float32) * piece_factors
    return values


def kept(weight: torch.Tensor, scale: torch.Tensor) -> Fp8Matrix | None:
    """Return `weight`, [..., r, c], as the FP8 that it is, with the scales of each output.

    The result is None if a product cannot apply the scales apart from the numbers. Raises ValueError as
    `dequantize` does.
    """
    factors, rows = _factors(weight, scale)
    lead = weight.shape[:-1]
    if factors.shape[-1] == 1:
        return Fp8Matrix(weight, factors.expand(*lead, 1).contiguous())
    if rows != BLOCK or (weight.shape[-1] <= BLOCK) != (scale.shape[-1] == 1):
        return None
    # Each output has its own copy of its block's scales, so that outputs can be joined and chosen.
    of_rows = scale.to(torch.float32).repeat_interleave(BLOCK, -2)[..., : lead[-1], :]
    return Fp8Matrix(weight, of_rows.contiguous())


def is_of_blocks(shape: tuple[int, ...], scale: tuple[int, ...]) -> bool:
    """Return whether the shape `scale` has several groups of inputs for a weight of `shape`, [..., r, c]."""
    return len(scale) == len(shape) >= 2 and 1 < scale[-1] < shape[-1]


def _factors(weight: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return the factors of `weight`, [..., r, c], and the number of rows for each row of factors.

    The factors are [..., n, c or 1]. The number of rows is 1, the height of a block, or 0 for all rows.
    Raises ValueError for scales of another shape.
    """
    factors = scale.to(torch.float32)
    if weight.dim() >= 2:
        height, width = weight.shape[-2:]
        if factors.numel() == 1:
            return factors.reshape(1, 1), 0
        if weight.dim() == 2 and factors.shape == (height,):
            factors = factors[:, None]
        if factors.dim() == weight.dim():
            extents = zip(factors.shape, weight.shape, strict=True)
            if all(extent in (1, full_extent) for extent, full_extent in extents):
                return factors, int(factors.shape[-2] > 1)
            blocks = [*weight.shape[:-2], -(-height // BLOCK), -(-width // BLOCK)]
            if blocks == list(factors.shape):
                return factors.repeat_interleave(BLOCK, -1)[..., :width], BLOCK
    raise ValueError(f"a scale of shape {list(scale.shape)} for a tensor of shape {list(weight.shape)}")
