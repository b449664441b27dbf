"""How many requests may be sent again: a share of those that came lately, and a few.

Where everything fails, each request sent three times is the load that keeps it failing. Pure.
"""

from collections import deque

from mamba_gateway.clock import Clock

WINDOW = 10.0
"""Seconds that are looked back on."""
RETRY_RATIO = 0.2
"""Of the requests in that time."""
MIN_RETRIES = 10
"""Beyond the share: a gateway with little to do sends again, too."""


class RetryBudget:
    """Of one gateway."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._requests: deque[float] = deque()
        self._retries: deque[float] = deque()

    def record_request(self) -> None:
        """A request."""
        now, times = self._clock(), self._requests
        times.append(now)
        while times[0] <= now - WINDOW:
            times.popleft()

    def record_retry(self) -> None:
        """One was sent again."""
        self._retries.append(self._clock())

    @property
    def available(self) -> bool:
        """One more may be."""
        if len(self._retries) < MIN_RETRIES:
            return True
        self._expire()
        return len(self._retries) < MIN_RETRIES + RETRY_RATIO * len(self._requests)

    def _expire(self) -> None:
        since = self._clock() - WINDOW
        for times in (self._requests, self._retries):
            while times and times[0] <= since:
                times.popleft()
