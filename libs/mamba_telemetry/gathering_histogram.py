"""A Prometheus histogram for observations of every request, counted when it is read.

Counting one observation takes two locks and a search; appending it to a list costs next to nothing. Pending
observations are counted together, before each scrape and whenever there are many. Written and read on one
thread.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from typing import Any

from prometheus_client import Histogram
from prometheus_client.samples import Sample

MAX_PENDING = 1024
"""Maximum number of pending observations."""


class GatheringHistogram(Histogram):
    """A `Histogram` for readers and registries that counts observations in batches."""

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
        for bucket, times in Counter([bisect_left(bounds, amount) for amount in gathered]).items():
            self._buckets[bucket].inc(times)

    def _child_samples(self) -> Iterable[Sample]:
        self._count()
        return super()._child_samples()
