"""Growing pauses between tries of what is away: a publisher's, a follower's, and a feed's of one engine."""

import random
from collections.abc import Callable

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds."""
_MANY = 16
"""Failures after which no pause is longer than the one before, whatever the two are."""


class Backoff:
    """Of one thing that is tried. `jitter`: 0 to 1, so that not all come back at the same time."""

    def __init__(self, jitter: Callable[[], float] = random.random) -> None:
        self._jitter = jitter
        self.failures = 0
        """In a row."""

    def failed(self) -> float:
        """It failed again; seconds until the next try: half to all of a pause that doubles."""
        pause: float = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(self.failures, _MANY))
        self.failures += 1
        return pause * (0.5 + 0.5 * self._jitter())

    def worked(self) -> None:
        """It did not fail."""
        self.failures = 0
