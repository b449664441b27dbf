"""The pages of a prompt at whose ends it is told that their attention is there: all near the beginning, then
every other, every fourth.

The same pages for every prompt, so that two that part anywhere have the last rung before it in common: it is
at most an eighth shallower. A prompt of 131,072 tokens in pages of 16 has 88 of them, not 8,192.
"""

from bisect import bisect_right

import numpy as np
import numpy.typing as npt

Rungs = npt.NDArray[np.int64]
DIGITS = 4
"""Binary ones and zeros of a page's number, counted from 1, behind which there are only zeros."""
_LONGEST = 1 << 22
"""Pages; beyond there are no rungs."""


def _all() -> Rungs:
    exact = 1 << DIGITS
    parts = [np.arange(1, exact, dtype=np.int64)]
    low = exact
    while low < _LONGEST:
        parts.append(np.arange(low, 2 * low, 2 * low // exact, dtype=np.int64))
        low *= 2
    return np.concatenate(parts)


_ALL = _all()
_NUMBERS: list[int] = _ALL.tolist()


def rungs(above: int, last: int) -> Rungs:
    """The numbers in (above, last] of the pages that are rungs, rising: int64[n]."""
    # Of a list: numpy takes longer to begin than this to end.
    return _ALL[bisect_right(_NUMBERS, above) : bisect_right(_NUMBERS, last)]
