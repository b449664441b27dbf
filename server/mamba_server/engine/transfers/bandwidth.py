"""Measured bandwidth of the sources of states, and the choice between fetching and computing. Pure.

It is bytes over time of the last transfers, so that a large one weighs more than a small one, whose time is
that of its messages; old transfers fade.
"""

FIRST_GUESS = {"memory": 2e9, "disk": 5e8, "peer": 1e9, "file": 5e8}
"""Bytes a second before anything was measured."""
GUESS_BYTES = 16 << 20
"""Weight of the first guess, as a number of measured bytes."""
FADING = 0.95
"""Factor by which each later transfer reduces the weight of a transfer."""
MIN_SECONDS = 1e-6
MIN_CHOICE_SECONDS = 0.05
"""Time of a transfer from which its cost is compared: below it, it spares the device more than it costs."""


class Bandwidth:
    """Estimates how many bytes per second each kind of source delivers.

    The estimate is a running average of the last transfers.
    """

    def __init__(self) -> None:
        self._moved = dict.fromkeys(FIRST_GUESS, float(GUESS_BYTES))
        self._seconds = {source: GUESS_BYTES / speed for source, speed in FIRST_GUESS.items()}
        self.waiting_bytes = 0
        """Bytes of the transfers that are awaited and have not ended."""

    def observe(self, source: str, size: int, seconds: float) -> None:
        """Record that `size` bytes came from `source` in `seconds`."""
        self._moved[source] = FADING * self._moved[source] + size
        self._seconds[source] = FADING * self._seconds[source] + max(seconds, MIN_SECONDS)

    def seconds(self, source: str, size: int) -> float:
        """Return the expected seconds until `size` bytes have come, behind the bytes that wait already."""
        return (self.waiting_bytes + size) * self._seconds[source] / self._moved[source]

    def pays(self, source: str, size: int, work: float, speed: float, *, least: float = 0.0) -> bool:
        """Return whether `size` bytes come sooner than `work` tokens are computed.

        Args:
            source: kind of the source.
            size: bytes that come.
            work: tokens to compute, in tokens at the beginning of a prompt.
            speed: such tokens a second; 0 = unknown, then a transfer pays.
            least: seconds below which a transfer pays whatever computing takes.
        """
        seconds = self.seconds(source, size)
        return speed <= 0 or seconds < least or seconds < work / speed
