"""When prefixes come back: for each class of checkpoint, how many returned at which age, as it happens.

Ages are requests since the checkpoint could last have been used, in bins of half an octave. `rate` is the
most returns per request of keeping that a checkpoint of a class and age promises (the Gittins index of
its return time): what is worth keeping a while may be worth nothing later. `HazardRatio` is what one trait
adds to the class. Called by the ghost tree; pure.
"""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

EDGES: tuple[int, ...] = (
    0, 1, 2, 4, 8, *(edge for octave in range(4, 21) for edge in (1 << octave, 3 << (octave - 1))),
)  # fmt: skip
"""Where the bins of ages begin; the last edge ends the last bin."""
BINS = len(EDGES) - 1
_WIDTHS: Floats = np.diff(np.array(EDGES, np.float64))
PRIOR = 0.1
"""Share returning in a bin before anything is known: no age is special, so the older, the rarer."""
WEIGHT = 8.0
"""Sightings in a bin after which a class counts as much as the wider class it belongs to."""
SLACK = 1.0
"""How far a class's forecasts may fall behind before the wider class decides: one sighting, wholly wrong."""
WINDOW = 4096.0
"""Sightings of a class after which what was seen before counts half: traffic changes."""


class ReturnTimes:
    """Survival counts of one class. `wider` fills in where it has seen little; None: the prior does.

    Its forecasts are scored before their outcome is counted; a class that does worse than `wider` decides
    nothing.
    """

    __slots__ = (
        "_decides",
        "_entered",
        "_forecast",
        "_learn_after",
        "_new",
        "_new_entered",
        "_new_returned",
        "_rates",
        "_returned",
        "score",
        "wider",
    )

    def __init__(self, wider: "ReturnTimes | None") -> None:
        self.wider = wider
        self._entered: Floats = np.zeros(BINS)
        self._returned: Floats = np.zeros(BINS)
        self._new_entered = [0] * BINS
        self._new_returned = [0] * BINS
        self._new = 0
        """The sum of `_new_entered`."""
        self._forecast: Floats = np.full(BINS, PRIOR)
        """What it foretold of the sightings that are not counted yet."""
        self._rates: list[float] = []
        self._decides: list[float] = []
        self._learn_after = 64.0
        """Sightings after which what was learnt is out of date: a quarter more, and some."""
        self.score = 0.0
        """By how much its squared errors were less than those of `wider`, of late."""

    def entered(self, at: int) -> None:
        """One reached bin `at` (0: it was made or used just now)."""
        self._new_entered[at] += 1
        self._new += 1

    def returned(self, at: int) -> None:
        """One came back while in bin `at`."""
        self._new_returned[at] += 1

    def rate(self, at: int) -> float:
        """Most returns per request of keeping one that has just entered bin `at`."""
        if not self._rates or self._new > self._learn_after:
            self._learn()
        return self._rates[at]

    def share(self, at: int) -> float:
        """The share that `rate` goes by: of those that enter bin `at`, those that come back within it."""
        if not self._rates or self._new > self._learn_after:
            self._learn()
        return self._decides[at]

    def shares(self) -> Floats:
        """For each bin, the share of those that enter it that come back within it."""
        prior = self.wider.shares() if self.wider is not None else np.full(BINS, PRIOR)
        shares: Floats = (self._returned + WEIGHT * prior) / (self._entered + WEIGHT)
        return shares

    def _learn(self) -> None:
        entered, returned = np.array(self._new_entered, np.float64), np.array(self._new_returned, np.float64)
        self._new_entered, self._new_returned, self._new = [0] * BINS, [0] * BINS, 0
        if self.wider is not None:
            wider = self.wider.shares()
            self.score = (
                0.9 * self.score
                + _error(wider, entered, returned)
                - _error(self._forecast, entered, returned)
            )
        self._count(entered, returned)
        self._forecast = self.shares()
        decides = self._forecast if self.wider is None or self.score > -SLACK else self.wider.shares()
        self._decides = decides.tolist()
        self._rates = _best_rates(np.minimum(decides, 0.999))

    def _count(self, entered: Floats, returned: Floats) -> None:
        self._entered = self._entered + entered
        self._returned = self._returned + returned
        if self._entered[0] > WINDOW:
            self._entered, self._returned = self._entered / 2, self._returned / 2
        self._learn_after = 64 + float(self._entered[0]) / 4
        # To be worked out again when they are asked for.
        self._rates = []
        if self.wider is not None:
            self.wider._count(entered, returned)  # noqa: SLF001 - the same class


class HazardRatio:
    """How many more of one trait return than their classes foretell, at every age alike.

    The ratio of returns to forecasts, drawn to 1: proportional hazards (Cox, 1972). A trait crossed with all
    classes would leave too few sightings in each to learn from.
    """

    __slots__ = ("_foretold", "_returned", "ratio")

    def __init__(self) -> None:
        self._foretold = 0.0
        self._returned = 0.0
        self.ratio = 1.0

    def entered(self, share: float) -> None:
        """One entered a bin in which `share` of its class come back."""
        self._foretold += share
        self._weigh()

    def returned(self) -> None:
        """One came back."""
        self._returned += 1
        self._weigh()

    def _weigh(self) -> None:
        self.ratio = (self._returned + WEIGHT) / (self._foretold + WEIGHT)
        if self._foretold > WINDOW / 2:
            self._returned, self._foretold = self._returned / 2, self._foretold / 2


def _error(shares: Floats, entered: Floats, returned: Floats) -> float:
    """Squared errors of saying `shares` of these sightings."""
    return float(((1 - shares) ** 2 * returned + shares**2 * np.maximum(entered - returned, 0)).sum())


def _best_rates(shares: Floats) -> list[float]:
    """For each bin, the greatest ratio of returns to requests kept over all times to give up after it."""
    alive = np.exp(np.concatenate(([0.0], np.cumsum(np.log1p(-shares)))))
    back = alive[:-1] - alive[1:]
    # Those that come back within a bin wait half of it on average.
    kept = _WIDTHS * (alive[:-1] - back / 2)
    sum_back = np.concatenate(([0.0], np.cumsum(back)))
    sum_kept = np.concatenate(([0.0], np.cumsum(kept)))
    spans = np.maximum(sum_kept[None, 1:] - sum_kept[:-1, None], 1e-300)
    ratios = np.triu((sum_back[None, 1:] - sum_back[:-1, None]) / spans)
    best: list[float] = ratios.max(axis=1).tolist()
    return best
