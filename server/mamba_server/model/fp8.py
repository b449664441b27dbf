"""Weights that are stored as FP8: the numbers that they stand for, by the scales beside them.

Used by `weights` while a model is loaded, which then holds them as it holds others. Three layouts are known:
one scale for a tensor (ModelOpt), one for each row (compressed-tensors), one for each block of 128 x 128 (the
FP8 of DeepSeek and Qwen). All multiply, also the one that is called an inverse.
"""

import torch

BLOCK = 128
"""Rows and columns of a block."""


def dequantized(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """float32 of `weight`, [..., r, c]. `scale`: of one element, [r], what broadcasts such as [..., r, 1], or
    [..., ceil(r / 128), ceil(c / 128)]. Raises ValueError where it is none of these."""
    values, factors = weight.to(torch.float32), scale.to(torch.float32)
    if factors.numel() == 1:
        return values * factors.reshape(())
    if factors.dim() == 1 and factors.shape == values.shape[-2:-1]:
        factors = factors[:, None]
    if factors.dim() == values.dim() >= 2:
        if all(given in (1, wanted) for given, wanted in zip(factors.shape, values.shape, strict=True)):
            return values * factors
        blocks = [-(-size // BLOCK) for size in values.shape[-2:]]
        if [*values.shape[:-2], *blocks] == list(factors.shape):
            for axis in (-2, -1):
                factors = factors.repeat_interleave(BLOCK, axis).narrow(axis, 0, values.shape[axis])
            return values * factors
    raise ValueError(f"a scale of shape {list(scale.shape)} for a tensor of shape {list(weight.shape)}")
