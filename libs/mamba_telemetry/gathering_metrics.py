"""Prometheus metrics for events of every request, which are counted when they are read.

Counting one observation takes two locks and a search; a counter here takes no lock, and a histogram appends
to a list. Pending observations are counted together, before each scrape and whenever there are many. One
thread has to write and to read these metrics.
"""

import collections
from bisect import bisect_left
from collections.abc import Iterable
from typing import Any

from prometheus_client import Counter, Histogram
from prometheus_client.samples import Sample


class GatheringCounter(Counter):
    """A counter that adds up increments without a lock. Registries and readers see an ordinary `Counter`."""

    def _metric_init(self) -> None:
        super()._metric_init()
        self._gathered = 0.0

    def inc(self, amount: float = 1, exemplar: dict[str, str] | None = None) -> None:
        """Count `amount` more, at once if there is an `exemplar`. Raises ValueError below 0."""
        if exemplar or amount < 0:
            super().inc(amount, exemplar)
        else:
            self._gathered += amount

    def _child_samples(self) -> Iterable[Sample]:
        gathered, self._gathered = self._gathered, 0.0
        self._value.inc(gathered)
        return super()._child_samples()


MAX_PENDING = 1024
"""Maximum number of pending observations."""


class GatheringHistogram(Histogram):
    """A histogram that counts observations in batches. Registries and readers see an ordinary `Histogram`."""

    def _metric_init(self) -> None:
        super()._metric_init()
        self._gathered: list[float] = []

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        """Observe `amount`, in the metric's unit; it is counted at once if there is an `exemplar`."""
        if exemplar:
            super().observe(amount, exemplar)
            return
        self._gathered.append(amount)
        if len(self._gathered) >= MAX_PENDING:
            self._count()

    def _count(self) -> None:
        gathered, self._gathered = self._gathered, []
        self._sum.inc(sum(gathered))
        bounds: Any = self._upper_bounds
        for bucket, times in collections.Counter(
            [bisect_left(bounds, amount) for amount in gathered]
        ).items():
            self._buckets[bucket].inc(times)

    def _child_samples(self) -> Iterable[Sample]:
        self._count()
        return super()._child_samples()
