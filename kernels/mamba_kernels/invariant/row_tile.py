"""Number of rows that a matrix product may take at once without a row's bits depending on its place.

Called once per shape when a model is loaded in batch-invariant mode; runs the product in question.
"""

from functools import cache

import torch
import torch.nn.functional as F

TILES = (16, 8, 4, 2, 1)
"""Candidates in the order of the trials. A single row always has the same place."""
SAMPLES = 4096
"""Smallest number of results compared per place: two orders of summation often agree in a single result."""


@cache
def sound_row_tile(inputs: int, outputs: int, bias: bool, dtype: torch.dtype, device: torch.device) -> int:
    """Return the largest number of rows of a product in which a row has the same bits at every place.

    The product is x [tile, inputs] -> [tile, outputs]. BLAS libraries choose their inner loops by shape, and
    some treat the last rows of a block differently. Whether this one does is measured on this machine rather
    than assumed.
    """
    generator = torch.Generator(device=device).manual_seed(inputs * 31 + outputs)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device, dtype=torch.float32).to(dtype)

    weight = random(outputs, inputs)
    added = random(outputs) if bias else None
    for tile in TILES:
        for _ in range(-(-SAMPLES // outputs)):
            x = random(tile, inputs)
            expected = F.linear(x, weight, added)
            results = [
                F.linear(x.roll(places, 0), weight, added).roll(-places, 0) for places in range(1, tile)
            ]
            if not all(torch.equal(expected, other) for other in results):
                break
        else:
            return tile
    return 1
