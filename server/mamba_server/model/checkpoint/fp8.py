"""Weights that are stored as FP8: the numbers that they stand for, by the scales beside them.

Used by `weights` while a model is loaded, which then holds them as it holds others. Three layouts are known:
one scale for a tensor (ModelOpt), one for each row (compressed-tensors), one for each block of 128 x 128 (the
FP8 of DeepSeek and Qwen). All multiply, also the one that is called an inverse.
"""

import torch

BLOCK = 128
"""Rows and columns of a block."""


def dequantized(weight: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The numbers of `weight`, [..., r, c], rounded once. `scale`: of one element, [r] for a matrix, what
    broadcasts such as [..., r, 1], or [..., ceil(r / 128), ceil(c / 128)]; else raises ValueError."""
    factors, rows = _factors(weight, scale)
    made = torch.empty(weight.shape, dtype=dtype)
    # A piece at a time: as float32 a large matrix would take four times its memory, twice.
    for begin in range(0, weight.shape[-2], BLOCK):
        piece = slice(begin, begin + BLOCK)
        of_piece = factors[..., piece.start // rows : -(-piece.stop // rows), :] if rows else factors
        made[..., piece, :] = weight[..., piece, :].to(torch.float32) * of_piece
    return made


def _factors(weight: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, int]:
    """What `weight`, [..., r, c], is multiplied by, [..., n, c or 1], and how many rows each row of that is
    for: 0 = all, 1, or a block's."""
    factors = scale.to(torch.float32)
    if weight.dim() >= 2:
        height, width = weight.shape[-2:]
        if factors.numel() == 1:
            return factors.reshape(1, 1), 0
        if weight.dim() == 2 and factors.shape == (height,):
            factors = factors[:, None]
        if factors.dim() == weight.dim():
            if all(given in (1, wanted) for given, wanted in zip(factors.shape, weight.shape, strict=True)):
                return factors, int(factors.shape[-2] > 1)
            blocks = [*weight.shape[:-2], -(-height // BLOCK), -(-width // BLOCK)]
            if blocks == list(factors.shape):
                return factors.repeat_interleave(BLOCK, -1)[..., :width], BLOCK
    raise ValueError(f"a scale of shape {list(scale.shape)} for a tensor of shape {list(weight.shape)}")
