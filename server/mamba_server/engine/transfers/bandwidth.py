"""Measured bandwidth of the sources of states, from which the duration of a transfer is estimated. Pure."""

FIRST_GUESS = {"memory": 2e9, "disk": 5e8, "peer": 1e9, "file": 5e8}
"""Bytes per second that each kind of source is assumed to deliver before the first measurement."""
SHARE = 0.25
"""Weight of the newest measurement in the running average."""
MIN_SECONDS = 1e-6


class Bandwidth:
    """Bytes per second that each kind of source delivers, as a running average of the last transfers."""

    def __init__(self) -> None:
        self._speeds = dict(FIRST_GUESS)
        self.waiting_bytes = 0
        """Bytes of all transfers that have begun and not ended."""

    def observe(self, source: str, size: int, seconds: float) -> None:
        """Record that `size` bytes from `source` took `seconds`."""
        speed = size / max(seconds, MIN_SECONDS)
        self._speeds[source] += SHARE * (speed - self._speeds[source])

    def seconds(self, source: str, size: int) -> float:
        """Return the expected seconds until `size` bytes arrive, after the transfers that have begun."""
        return (self.waiting_bytes + size) / self._speeds[source]
