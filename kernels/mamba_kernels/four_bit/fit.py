"""Fits numbers of four bits, with one float16 scale for each block, to ordinary weights.

Both the C++ kernels of CPUs and the Triton kernels of GPUs multiply by such numbers; `--quantization int4`
fits them while a model is loaded. Several numbers are tried for the weight of a block that is farthest from
zero; the block takes the scale with the least squared error. A block that contains NaN or infinity has no
finite scale.
"""

import torch

SMALLEST, LARGEST = -8, 7
ENDS = (-8.5, -7.0)
"""Numbers that are tried for the weight of a block that is farthest from zero, before rounding."""


def fit_integers(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the float16 scale [...] of blocks [BLOCK, ...] and their numbers in -8..7, as float32."""
    high, low = blocks.amax(0), blocks.amin(0)
    farthest = torch.where(high > -low, high, low)
    scale, least = farthest / SMALLEST, torch.zeros_like(farthest)
    for end in ENDS:
        number = _numbers_for(blocks, farthest / end)
        product = (blocks * number).sum(0)
        squares = number.square_().sum(0)
        # The best scale for these numbers leaves an error of the block's squares minus this.
        explained = product.square() / squares
        better = explained > least
        scale, least = torch.where(better, product / squares, scale), torch.where(better, explained, least)
    scale = scale.half()
    return scale, _numbers_for(blocks, scale.float())


def _numbers_for(blocks: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (blocks * scale.reciprocal()).nan_to_num_(0.0).round_().clamp_(SMALLEST, LARGEST)
