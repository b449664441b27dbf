"""`Histogram`: numbers of durations in buckets, and the test whether those of one histogram are longer. Pure.

The test is that of Mann and Whitney on buckets: it assumes no shape of the distribution, and a few very long
durations decide nothing. A tolerance is applied by stretching the durations of the other histogram first.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Histogram:
    """The numbers of durations in buckets, by which two revisions are compared."""

    bounds: tuple[float, ...] = ()
    """Upper bounds of the buckets in seconds, rising; the last one is infinite."""
    counts: tuple[float, ...] = ()
    """Number of durations in each bucket."""

    @classmethod
    def of_cumulative(cls, buckets: Mapping[float, float]) -> "Histogram":
        """Return the histogram of cumulative counts by upper bound, as Prometheus writes them."""
        bounds = tuple(sorted(buckets))
        below = (0.0, *(buckets[bound] for bound in bounds[:-1]))
        return cls(bounds, tuple(buckets[bound] - less for bound, less in zip(bounds, below, strict=True)))

    @property
    def total(self) -> float:
        """Number of durations."""
        return sum(self.counts)

    def __add__(self, other: "Histogram") -> "Histogram":
        if not self.bounds:
            return other
        if other.bounds != self.bounds:
            # Gateways of another version may use other buckets: their durations cannot be compared.
            return self
        pairs = zip(self.counts, other.counts, strict=True)
        return Histogram(self.bounds, tuple(one + more for one, more in pairs))

    def since(self, before: "Histogram") -> "Histogram":
        """Return the durations that were added after `before`; all of them if a counter has restarted."""
        if before.bounds != self.bounds:
            return self
        more = tuple(now - then for now, then in zip(self.counts, before.counts, strict=True))
        return self if any(count < 0 for count in more) else Histogram(self.bounds, more)

    def stretched(self, factor: float) -> "Histogram":
        """Return the histogram of the durations multiplied by `factor`, at least 1, in the same buckets.

        The durations of a bucket are taken as evenly spread on a logarithmic scale.
        """
        counts = [0.0] * len(self.counts)
        for index, count in enumerate(self.counts):
            low, high = self._edges(index)
            if not count or math.isinf(high):
                counts[index] += count
                continue
            low, high = low * factor, high * factor
            for target in range(index, len(self.bounds)):
                part = _shared(low, high, *self._edges(target))
                counts[target] += count * part
        return Histogram(self.bounds, tuple(counts))

    def _edges(self, index: int) -> tuple[float, float]:
        high = self.bounds[index]
        return (self.bounds[index - 1] if index else high / 2), high

    def median(self) -> float:
        """Return the median in seconds; 0 without durations, the last finite bound if it lies beyond that."""
        left = self.total / 2
        for index, count in enumerate(self.counts):
            if count and left <= count:
                low, high = self._edges(index)
                return low if math.isinf(high) else low * (high / low) ** (left / count)
            left -= count
        return 0.0


def _shared(low: float, high: float, begin: float, end: float) -> float:
    """Return the share of [low, high] that lies in [begin, end], on a logarithmic scale."""
    inner = math.log(min(high, end) / max(low, begin)) if max(low, begin) < min(high, end) < math.inf else 0.0
    if math.isinf(end) and high > begin:
        inner = math.log(high / max(low, begin))
    return inner / math.log(high / low)


def p_value_of_longer(new: Sequence[float], old: Sequence[float]) -> float:
    """Return the one-sided p-value, 0 to 1, for longer durations in `new`, both by the same buckets.

    It is the probability that the ranks of `new` are at least as high if both come from one distribution, by
    the normal approximation with the correction for ties.
    """
    new_total, old_total = sum(new), sum(old)
    total = new_total + old_total
    if not new_total or not old_total:
        return 1.0
    wins = below = ties = 0.0
    for count, other in zip(new, old, strict=True):
        wins += count * (below + other / 2)
        below += other
        both = count + other
        ties += both * (both * both - 1)
    variance = new_total * old_total / 12 * (total + 1 - ties / (total * (total - 1)))
    if variance <= 0:
        return 1.0
    score = (wins - new_total * old_total / 2) / math.sqrt(variance)
    return 0.5 * math.erfc(score / math.sqrt(2))
