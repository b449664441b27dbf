"""Stochastic rounding of states to float16 as a pure function of (seed, depth, element), without a generator.

A number between two neighbours of float16 becomes the upper one with a probability equal to its distance
from the lower one, so that errors cancel over many steps; rounding to nearest would lose every increment
below half a step. The same sequence at the same depth stores the same bits in every batch and on every
device. Every kernel that writes float16 states repeats the arithmetic of `round_to_float16_`, operation by
operation.
"""

import numpy as np
import torch

IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int32]]
_GOLDEN = -1640531527  # 2**32 / golden ratio, odd, as int32
BLOCK_ELEMENTS = 1 << 17
"""Elements that are rounded at once: half a megabyte, so that the passes run in the cache."""
_NORMAL, _LARGEST, _INFINITE = 0x38800000, 0x477FE000, 0x477FF000
"""Bits of 2**-14 (smallest normal float16), of 65504 (largest float16), and of 65520 (rounds to infinity)."""


def noise_words(seed: IntArray, depth: IntArray) -> IntArray:
    """Compute a word for each state from the seed of its sequence and its depth in tokens (splitmix64)."""
    z = seed.astype(np.uint32).astype(np.uint64) << np.uint64(32) | depth.astype(np.uint64)
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z >> np.uint64(32)).astype(np.uint32).view(np.int32)


def round_to_float16_(states: torch.Tensor, words: torch.Tensor) -> None:
    """Round each number of `states` [n, ...] (dense) in place to one that float16 can represent.

    `words` are [n] int32 of `noise_words`, on the same device. A number of at least 65520 becomes infinite,
    as it does when rounded to nearest; a smaller one never does. Below 2**-14 the probability has steps of
    2**-23.
    """
    flat = states.view(len(states), -1)
    size = flat.shape[1]
    width = min(size, BLOCK_ELEMENTS)
    rows_at_once = max(1, BLOCK_ELEMENTS // max(1, size))
    for first_column in range(0, size, max(1, width)):
        columns = slice(first_column, first_column + width)
        element = torch.arange(
            first_column, min(first_column + width, size), dtype=torch.int32, device=states.device
        )
        element.mul_(_GOLDEN)
        for first in range(0, len(flat), rows_at_once):
            rows = slice(first, first + rows_at_once)
            part = flat[rows, columns]
            part.copy_(_round(part.float(), _mix(element ^ words[rows, None])))


def _mix(x: torch.Tensor) -> torch.Tensor:
    """Apply the finalizer of MurmurHash3 (public domain, A. Appleby) in place to int32: a bijection."""
    for shift, low_bits, factor in ((16, 0xFFFF, -2048144789), (13, 0x7FFFF, -1028477387), (16, 0xFFFF, 1)):
        x ^= (x >> shift).bitwise_and_(low_bits)
        if factor != 1:
            x *= factor  # 0x85EBCA6B, 0xC2B2AE35
    return x


def _round(x: torch.Tensor, random: torch.Tensor) -> torch.Tensor:
    """Round x, float32; `random` are int32, of which all 32 bits are used."""
    size = x.abs()
    bits = size.view(torch.int32)
    # Normal numbers: 13 bits of the mantissa are dropped; a random addend carries with their probability.
    carried = (random >> 19).bitwise_and_(0x1FFF).add_(bits).bitwise_and_(-0x2000).clamp_(max=_LARGEST)
    # Subnormal numbers: the steps are 2**-24 wide.
    steps = size * 2.0**24
    whole = steps.floor()
    threshold = (random >> 9).bitwise_and_(0x7FFFFF).float().add_(0.5).mul_(2.0**-23)
    whole += (steps - whole) > threshold
    out = torch.where(bits < _NORMAL, whole.mul_(2.0**-24), carried.view(torch.float32))
    return torch.where(bits >= _INFINITE, size.half().float(), out).copysign_(x)
