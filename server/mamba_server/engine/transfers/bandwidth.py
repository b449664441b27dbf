"""Measured bandwidth of the sources of states, and the choice between fetching and computing. Pure."""

FIRST_GUESS = {"memory": 2e9, "disk": 5e8, "peer": 1e9, "file": 5e8}
"""Bytes a second before anything was measured."""
SHARE = 0.25
"""Share of the difference by which a transfer moves the estimate."""
MIN_SECONDS = 1e-6


class Bandwidth:
    """Bytes a second of each source, as the last transfers took."""

    def __init__(self) -> None:
        self._speeds = dict(FIRST_GUESS)
        self.waiting_bytes = 0
        """Bytes of the transfers that have begun and not ended."""

    def observe(self, source: str, size: int, seconds: float) -> None:
        """Record that `size` bytes came from `source` in `seconds`."""
        speed = size / max(seconds, MIN_SECONDS)
        self._speeds[source] += SHARE * (speed - self._speeds[source])

    def seconds(self, source: str, size: int) -> float:
        """Return the expected seconds until `size` bytes have come, behind those that wait."""
        return (self.waiting_bytes + size) / self._speeds[source]
