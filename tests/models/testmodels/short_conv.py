"""Random rows, weights and windows of a gated short convolution between its projections."""

import torch

from testmodels.chunks import strided_cache

SLOTS = 21


class ShortConvRows:
    """T rows b | c | x and a convolution; the same numbers in every type.

    Slots 1 to 4 and 7 have a window.
    """

    def __init__(self, T: int, *, channels: int, taps: int, dtype: torch.dtype, biased: bool = True) -> None:
        g = torch.Generator().manual_seed(channels + taps)
        self.channels = channels
        # Rows as a part of wider ones, as a projection that is padded leaves them.
        self.rows = torch.randn(T, 3 * channels + 5, generator=g).to(dtype)[:, 2:-3]
        self.weight = torch.randn(taps, channels, generator=g)
        bias = torch.randn(channels, generator=g)
        self.bias = bias if biased else None
        self.window = strided_cache(SLOTS, taps - 1, channels, dtype=dtype)
        for slot in (1, 2, 3, 4, 7):
            self.window[slot] = torch.randn(taps - 1, channels, generator=g).to(dtype)
