"""A fleet that stays as it is."""

from mamba_cli.fleet.sample import FleetSample


class FixedSize:
    """Always so many."""

    period, delay = 60.0, 0.0

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas

    def target(self, sample: FleetSample) -> int:
        """As at the beginning."""
        del sample
        return self._replicas
