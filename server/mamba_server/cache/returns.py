"""When prefixes come back: for each class of checkpoint, how many returned at which age, counted as it happens.

Ages are requests since the checkpoint could last have been used, in bins of half an octave. `rate` is the most returns
per request of keeping that a checkpoint of a class and age promises (the Gittins index of its return time): what is
worth keeping a while may be worth nothing later, and the other way round. Called by the ghost tree and eviction; pure.
"""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

EDGES: tuple[int, ...] = (
    0, 1, 2, 3, *(edge for octave in range(2, 24) for edge in (1 << octave, 3 << (octave - 1))),
)  # fmt: skip
"""Where the bins of ages begin."""
BINS = len(EDGES) - 1
_WIDTHS: Floats = np.diff(np.array(EDGES, np.float64))
PRIOR = 0.1
"""Share returning in each half octave before anything is known: no age is special, so older is less likely."""
WEIGHT = 8.0
"""Sightings after which a class counts as much as the wider class it belongs to."""
WINDOW = 4096.0
"""Sightings of a class after which the older ones count half."""


class ReturnTimes:
    """Survival counts of one class. `wider` fills in where it has seen little; None: the prior does."""

    __slots__ = ("_entered", "_fresh", "_returned", "_stale", "wider")

    def __init__(self, wider: "ReturnTimes | None") -> None:
        self.wider = wider
        self._entered = [0.0] * BINS
        self._returned = [0.0] * BINS
        self._fresh: list[float] = []
        self._stale = 0.0

    def entered(self, at: int) -> None:
        """One reached bin `at` (0: it was made or used just now)."""
        self._entered[at] += 1
        self._stale += 1
        if self._entered[0] > WINDOW:
            self._entered = [count / 2 for count in self._entered]
            self._returned = [count / 2 for count in self._returned]
        if self.wider is not None:
            self.wider.entered(at)

    def returned(self, at: int) -> None:
        """One came back while in bin `at`."""
        self._returned[at] += 1
        self._stale += 1
        if self.wider is not None:
            self.wider.returned(at)

    def shares(self) -> Floats:
        """For each bin, the share of those that enter it that come back within it."""
        prior = self.wider.shares() if self.wider is not None else np.full(BINS, PRIOR)
        shares: Floats = (np.array(self._returned) + WEIGHT * prior) / (np.array(self._entered) + WEIGHT)
        return shares

    def rate(self, at: int) -> float:
        """Most returns per request of keeping one that has just entered bin `at`."""
        if not self._fresh or self._stale > 16 + self._entered[0] / 8:
            self._fresh = _best_rates(np.minimum(self.shares(), 0.999)).tolist()
            self._stale = 0.0
        return self._fresh[at]


def _best_rates(shares: Floats) -> Floats:
    """For each bin, the greatest ratio of returns to requests kept over all times to give up after it."""
    survive = np.concatenate(([0.0], np.cumsum(np.log1p(-shares))))
    alive = np.exp(survive)
    back = alive[:-1] - alive[1:]
    # Those that come back within a bin wait half of it on average.
    kept = _WIDTHS * (alive[:-1] - back / 2)
    sum_back = np.concatenate(([0.0], np.cumsum(back)))
    sum_kept = np.concatenate(([0.0], np.cumsum(kept)))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = (sum_back[None, 1:] - sum_back[:-1, None]) / (sum_kept[None, 1:] - sum_kept[:-1, None])
    ratios[np.tril_indices(BINS, -1)] = 0.0
    best: Floats = np.nan_to_num(ratios).max(axis=1)
    return best
