"""A Prometheus histogram for what is observed with every request: counted when somebody reads it.

To count one observation takes two locks and a search; to put it on a list, next to nothing. What waits is
counted together, before each scrape and whenever there is much of it. Written and read on one thread.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from typing import Any

from prometheus_client import Histogram
from prometheus_client.samples import Sample

MOST_GATHERED = 1024
"""Observations that wait at most."""


class GatheringHistogram(Histogram):
    """As `Histogram` to whoever reads it, and to those who register it."""

    def _metric_init(self) -> None:
        super()._metric_init()
        self._gathered: list[float] = []

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        """Observe `amount`, in the metric's unit; with what `exemplar` points to it is counted at once."""
        if exemplar:
            super().observe(amount, exemplar)
            return
        self._gathered.append(amount)
        if len(self._gathered) >= MOST_GATHERED:
            self._count()

    def _count(self) -> None:
        gathered, self._gathered = self._gathered, []
        self._sum.inc(sum(gathered))
        bounds: Any = self._upper_bounds
        for place, times in Counter([bisect_left(bounds, amount) for amount in gathered]).items():
            self._buckets[place].inc(times)

    def _child_samples(self) -> Iterable[Sample]:
        self._count()
        return super()._child_samples()
