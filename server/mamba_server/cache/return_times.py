"""Statistics of return times: for each class of checkpoint, the returns at each age, updated with each event.

A checkpoint returns when a prompt uses it again. Ages are requests since the last possible use of the
checkpoint, in bins of half an octave. `rate` is the expected number of returns per request for which the
checkpoint is kept, if it is given up at the best age (the Gittins index of its return time): a checkpoint
that is worth keeping for a while may be worth nothing later. `HazardRatio` is the effect of one trait on all
classes. Called by the ghost tree; pure.
"""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

EDGES: tuple[int, ...] = (
    0, 1, 2, 4, 8, *(edge for octave in range(4, 21) for edge in (1 << octave, 3 << (octave - 1))),
)  # fmt: skip
"""Lower edges of the bins of ages; the last edge ends the last bin."""
BINS = len(EDGES) - 1
_WIDTHS: Floats = np.diff(np.array(EDGES, np.float64))
PRIOR = 0.1
"""Assumed share that returns in a bin before anything is known: no age is special, so returns are the rarer
the older the checkpoint."""
WEIGHT = 8.0
"""Observations in a bin after which a class counts as much as the wider class that contains it."""
SLACK = 1.0
"""Score by which a class's forecasts may fall behind before the wider class decides: one observation, wholly
wrong."""
WINDOW = 4096.0
"""Observations of a class after which earlier ones are halved, because traffic changes."""


class ReturnTimes:
    """Counts of one class of checkpoints: by age, how many reached that age, and how many were used at it.

    `wider` is the class that contains it and fills in where this one has few observations; without one, the
    prior does. Forecasts are scored before their outcome is counted; a class that forecasts worse than
    `wider` decides nothing.
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
        """Sum of `_new_entered`."""
        self._forecast: Floats = np.full(BINS, PRIOR)
        """Forecast for the observations that are not counted yet."""
        self._rates: list[float] = []
        self._decides: list[float] = []
        self._learn_after = 64.0
        """Observations after which the learned rates are out of date: a quarter more, plus a constant."""
        self.score = 0.0
        """Recent advantage of this class over `wider`, in squared error."""

    def entered(self, age_bin: int) -> None:
        """Record that a checkpoint reached bin `age_bin` (0: it was created or used just now)."""
        self._new_entered[age_bin] += 1
        self._new += 1

    def returned(self, age_bin: int) -> None:
        """Record that a checkpoint was used while in bin `age_bin`."""
        self._new_returned[age_bin] += 1

    def rate(self, age_bin: int) -> float:
        """Return the expected returns per request of keeping a checkpoint that has just entered `age_bin`."""
        if not self._rates or self._new > self._learn_after:
            self._learn()
        return self._rates[age_bin]

    def share(self, age_bin: int) -> float:
        """Return the share of checkpoints entering `age_bin` that return within it, as `rate` uses it."""
        if not self._rates or self._new > self._learn_after:
            self._learn()
        return self._decides[age_bin]

    def shares(self) -> Floats:
        """Return for each bin the share of the checkpoints entering it that return within it."""
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
        # Computed again at the next use.
        self._rates = []
        if self.wider is not None:
            self.wider._count(entered, returned)  # noqa: SLF001 - the same class


class HazardRatio:
    """Learns how much more or less often checkpoints with one trait return than their classes forecast.

    `ratio` is the factor to multiply a forecast by.
    """

    __slots__ = ("_expected", "_returned", "ratio")

    def __init__(self) -> None:
        self._expected = 0.0
        self._returned = 0.0
        self.ratio = 1.0

    def entered(self, share: float) -> None:
        """Record that a checkpoint entered a bin in which `share` of its class return."""
        self._expected += share
        self._weigh()

    def returned(self) -> None:
        """Record that a checkpoint with the trait returned."""
        self._returned += 1
        self._weigh()

    def _weigh(self) -> None:
        self.ratio = (self._returned + WEIGHT) / (self._expected + WEIGHT)
        if self._expected > WINDOW / 2:
            self._returned, self._expected = self._returned / 2, self._expected / 2


def _error(shares: Floats, entered: Floats, returned: Floats) -> float:
    """Return the squared error of forecasting `shares` for these observations."""
    return float(((1 - shares) ** 2 * returned + shares**2 * np.maximum(entered - returned, 0)).sum())


def _best_rates(shares: Floats) -> list[float]:
    """Return for each bin the highest ratio of returns to requests kept, over all times to give up."""
    alive = np.exp(np.concatenate(([0.0], np.cumsum(np.log1p(-shares)))))
    back = alive[:-1] - alive[1:]
    # Checkpoints that return within a bin are kept for half of it on average.
    kept = _WIDTHS * (alive[:-1] - back / 2)
    sum_back = np.concatenate(([0.0], np.cumsum(back)))
    sum_kept = np.concatenate(([0.0], np.cumsum(kept)))
    spans = np.maximum(sum_kept[None, 1:] - sum_kept[:-1, None], 1e-300)
    ratios = np.triu((sum_back[None, 1:] - sum_back[:-1, None]) / spans)
    best: list[float] = ratios.max(axis=1).tolist()
    return best
