"""Evenness of the queues of several engines while there are queues. Pure. Pure.

The most in an engine by the mean: of requests (those that run and those that wait) or of seconds of prompts
that are still to be computed, at each moment or on average over `WINDOW_SECONDS`. Of little one more is much
(a queue of 1 beside three empty ones is 4 times the mean), so only moments with `LEAST` requests or
`LEAST_SECONDS` an engine count, and how many of all those are is told beside it. For seconds also by how many
of them the busiest engine exceeds the mean.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEAST = 4.0
"""Requests in an engine, on average over the engines, from which on a moment counts."""
LEAST_SECONDS = 1.0
"""The same of seconds of prompts."""
WINDOW_SECONDS = 10.0
"""Over which a queue is averaged where moments are not what is asked for."""


@dataclass(frozen=True, slots=True)
class QueueBalance:
    """Over the moments that count."""

    p50: float
    p99: float
    share: float
    """Share of all moments."""
    mean: float
    """Requests in an engine, or seconds."""

    @classmethod
    def of(cls, queues: Sequence[Sequence[float]], least: float = LEAST) -> "QueueBalance | None":
        """Evaluate `queues`, a row of engines for each moment. None where no moment counts."""
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


def over_windows(queues: Sequence[Sequence[float]], moments: int) -> list[list[float]]:
    """Average each engine over every window of `moments` successive moments."""
    windows = (queues[at : at + moments] for at in range(0, len(queues) - moments + 1, moments))
    return [[statistics.fmean(engine) for engine in zip(*window, strict=True)] for window in windows]


def seconds_over_mean(work: Sequence[Sequence[float]]) -> float:
    """Return the 99th percentile of the seconds by which the busiest engine exceeds the mean."""
    return round(percentile([max(now) - statistics.fmean(now) for now in work] or [0.0], 99), 2)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value with `percent` per cent of all values at or below it.

    Raises IndexError without any.
    """
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(percent / 100 * len(ordered)))]
