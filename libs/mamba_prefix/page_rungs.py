"""The pages of a prompt, called rungs, at whose ends cached attention pages are published.

All pages near the beginning are rungs, then every second, every fourth and so on. The rungs are the same for
every prompt, so that two prompts that part anywhere have the last rung before that point in common: it is at
most an eighth shallower. A prompt of 131,072 tokens in pages of 16 has 88 rungs, not 8,192.
"""

from bisect import bisect_right

import numpy as np
import numpy.typing as npt

Rungs = npt.NDArray[np.int64]
DIGITS = 4
"""Significant binary digits of a rung's number, counted from 1; all further digits are zero."""
_LONGEST = 1 << 22
"""Number of pages beyond which there are no rungs."""


def _all_rungs() -> Rungs:
    exact = 1 << DIGITS
    parts = [np.arange(1, exact, dtype=np.int64)]
    low = exact
    while low < _LONGEST:
        parts.append(np.arange(low, 2 * low, 2 * low // exact, dtype=np.int64))
        low *= 2
    return np.concatenate(parts)


_RUNGS = _all_rungs()
_NUMBERS: list[int] = _RUNGS.tolist()


def rungs(above: int, last: int) -> Rungs:
    """Return the numbers of the rungs in (above, last], ascending: int64[n]."""
    # In a list: numpy takes longer to begin than this search takes.
    return _RUNGS[bisect_right(_NUMBERS, above) : bisect_right(_NUMBERS, last)]
