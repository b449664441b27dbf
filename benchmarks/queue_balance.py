"""How even the queues of several engines are, at the moments at which there are queues. Pure.

By number, the most requests in an engine (those that run and those that wait) by the mean; by time, the
seconds by which the busiest engine's queued prompts exceed the mean. Of few requests one more is much (a
queue of 1 beside three empty ones is 4 times the mean), so only moments with `LEAST` an engine count, and how
many of all those are is told beside it.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEAST = 4.0
"""Requests in an engine, on average over the engines, from which on a moment counts."""


@dataclass(frozen=True, slots=True)
class QueueBalance:
    """Over the moments that count."""

    p50: float
    p99: float
    share: float
    """Of all moments."""
    mean: float
    """Requests in an engine."""

    @classmethod
    def of(cls, queues: Sequence[Sequence[float]], least: float = LEAST) -> "QueueBalance | None":
        """`queues`: requests in each engine, one row for each moment. None where no moment counts."""
        counting = [now for now in queues if statistics.fmean(now) >= least]
        if not counting:
            return None
        ratios = [max(now) / statistics.fmean(now) for now in counting]
        means = statistics.fmean(statistics.fmean(now) for now in counting)
        share = len(counting) / len(queues)
        return cls(
            round(percentile(ratios, 50), 2),
            round(percentile(ratios, 99), 2),
            round(share, 2),
            round(means, 1),
        )


def seconds_over_mean(work: Sequence[Sequence[float]]) -> float:
    """99th percentile of the seconds by which the most work in an engine exceeds the mean."""
    return round(percentile([max(now) - statistics.fmean(now) for now in work] or [0.0], 99), 2)


def percentile(values: Sequence[float], percent: float) -> float:
    """The value with so many per cent of all at or below it. Raises IndexError without any."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(percent / 100 * len(ordered)))]
