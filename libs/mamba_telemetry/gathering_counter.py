"""A Prometheus counter for events of every request: it takes no lock and is summed up when it is read.

Written and read on one thread.
"""

from collections.abc import Iterable

from prometheus_client import Counter
from prometheus_client.samples import Sample


class GatheringCounter(Counter):
    """A `Counter` for readers and registries that collects increments without a lock."""

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
