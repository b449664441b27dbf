"""A bound on what any policy can save in a cache of a given size, whatever it knows of the future.

To resume request i at depth d, the pages of [0, d) and the state at d must have been kept since the request
that touched each of them last: a reuse costs bytes x requests since then. The intervals of different reuses
do not overlap in the same page, so all costs together are at most capacity x duration. One Lagrange
multiplier on that sum gives an upper bound for any value of it; the least is taken. Pages and states are
counted to the byte, the running request not at all: a real cache has less. Pure.
"""

import numpy as np
import numpy.typing as npt
from benchmarks.cache.history import PrefixHistory

Floats = npt.NDArray[np.float64]


def space_time_bound(history: PrefixHistory, slabs: float, pages_per_slab: int) -> int:
    """Return the most tokens that `slabs` slabs can save; 0 pages a slab: pages take no memory."""
    gains, costs, starts = _reuses(history, 1 / pages_per_slab if pages_per_slab else 0.0)
    if not len(gains):
        return 0
    room = slabs * max(0, len(history.paths) - 1)

    def at(price: float) -> float:
        best = np.maximum.reduceat(gains - price * costs, starts)
        return float(np.maximum(best, 0).sum()) + price * room

    # Convex in the price: narrow by thirds, in logarithms.
    low, high = -20.0, 20.0
    least = at(0.0)
    for _ in range(60):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        at_left, at_right = at(np.exp(left)), at(np.exp(right))
        least = min(least, at_left, at_right)
        if at_left < at_right:
            high = right
        else:
            low = left
    return int(np.ceil(least - 1e-6))


def _reuses(history: PrefixHistory, page: float) -> tuple[Floats, Floats, npt.NDArray[np.int64]]:
    """Return tokens, cost in slabs x requests, and the start of the choices of each resumable request."""
    gains: list[float] = []
    costs: list[float] = []
    starts: list[int] = []
    for number, path in enumerate(history.paths):
        last = history.last(path[: history.limits[number]], number)
        if not last:
            continue
        starts.append(len(gains))
        pages = 0.0
        for depth, touched in enumerate(last, 1):
            gap = number - touched
            pages += page * gap
            # Within a run of equal gaps the deepest is the best, or none of it.
            if depth == len(last) or last[depth] != touched:
                gains.append(depth * history.block)
                costs.append(pages + gap)
    return np.array(gains), np.array(costs), np.array(starts, np.int64)
