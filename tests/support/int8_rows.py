"""Rounding of rows in products by int8 weights."""

import torch
import torch.nn.functional as F

BLOCK = 32
LEAST = 1.5e-36
"""Threshold for the largest number of a block: a smaller one counts as zero."""


def as_int8(x: torch.Tensor) -> torch.Tensor:
    """Return the multiplied rows [T, inputs] in float64: multiples of a 127th of a block's largest."""
    inputs = x.shape[1]
    blocks = F.pad(x.float(), (0, -inputs % BLOCK)).unflatten(1, (-1, BLOCK))
    largest = blocks.abs().amax(-1, keepdim=True)
    counts = ~(largest < LEAST)
    numbers = (blocks * torch.where(counts, 127 / largest, 0)).round()
    held = numbers.double() * torch.where(counts, largest / 127, 0).double()
    return held.flatten(1)[:, :inputs]
