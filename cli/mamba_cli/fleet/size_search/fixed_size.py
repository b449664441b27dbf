"""A scaler that keeps the number of engines constant."""

from mamba_cli.fleet.sample import FleetSample


class FixedSize:
    """Scaler that always requests the same number of engines."""

    period, delay = 60.0, 0.0

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas

    def target(self, sample: FleetSample) -> int:
        """Return the constant number of engines."""
        del sample
        return self._replicas
