"""How many rows a matrix product may take at once without a row's bits depending on its place among them.

Asked once per shape when a model is loaded in batch-invariant mode; runs the very product it answers for.
"""

from functools import cache

import torch
import torch.nn.functional as F

TILES = (16, 8, 4, 2, 1)
"""Tried in this order. One row alone has no place."""
SAMPLES = 4096
"""Results compared in each place at least: two orders of summation often agree in a single one."""


@cache
def sound_row_tile(inputs: int, outputs: int, bias: bool, dtype: torch.dtype, device: torch.device) -> int:
    """The largest tile in which every place gives the same bits, for x [tile, inputs] -> [tile, outputs].

    BLAS libraries choose their inner loops by shape, and some treat the last rows of a block otherwise; which
    ones do is found out on this machine rather than assumed.
    """
    generator = torch.Generator(device=device).manual_seed(inputs * 31 + outputs)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device, dtype=torch.float32).to(dtype)

    weight = random(outputs, inputs)
    added = random(outputs) if bias else None
    for tile in TILES:
        for _ in range(-(-SAMPLES // outputs)):
            x = random(tile, inputs)
            truth = F.linear(x, weight, added)
            moved = [F.linear(x.roll(places, 0), weight, added).roll(-places, 0) for places in range(1, tile)]
            if not all(torch.equal(truth, other) for other in moved):
                break
        else:
            return tile
    return 1
