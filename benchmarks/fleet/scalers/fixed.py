"""A fleet that stays as it is."""

from benchmarks.fleet.sample import FleetSample


class Fixed:
    """Always so many."""

    period, delay = 60.0, 0.0

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas

    def target(self, sample: FleetSample) -> int:
        """As at the beginning."""
        del sample
        return self._replicas
