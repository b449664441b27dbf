"""Growing pauses between attempts to reach a server that is away, for publisher, follower and direct feed."""

import random
from collections.abc import Callable

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Shortest and longest pause in seconds."""
_MANY = 16
"""Number of failures after which the pause does not grow any more."""


class Backoff:
    """The growing pauses between the attempts of one client to reach a server.

    `jitter` returns a random number from 0 to 1, so that not all clients return at the same time.
    """

    def __init__(self, jitter: Callable[[], float] = random.random) -> None:
        self._jitter = jitter
        self.failures = 0
        """Number of failures since the last success."""

    def record_failure(self) -> float:
        """Record a failure, and return the seconds until the next attempt.

        They are a random time from half to all of a pause that doubles with each failure.
        """
        pause: float = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(self.failures, _MANY))
        self.failures += 1
        return pause * (0.5 + 0.5 * self._jitter())

    def record_success(self) -> None:
        """Record a success: the next pause is the shortest one again."""
        self.failures = 0
