"""`RetryBudget`: limits retries to a share of the recent requests plus a constant. Pure.

Without it, a fleet that fails everything would get each request several times, and the load would keep it
failing.
"""

from collections import deque

from mamba_gateway.clock import Clock

WINDOW = 10.0
"""Seconds over which requests and retries are counted."""
RETRY_RATIO = 0.2
"""Retries allowed per request in the window."""
MIN_RETRIES = 10
"""Retries allowed in the window whatever the number of requests, so that an idle gateway can retry."""


class RetryBudget:
    """Of one gateway."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._requests: deque[float] = deque()
        self._retries: deque[float] = deque()

    def record_request(self) -> None:
        """A request has arrived."""
        now, times = self._clock(), self._requests
        times.append(now)
        while times[0] <= now - WINDOW:
            times.popleft()

    def record_retry(self) -> None:
        """A request was retried."""
        self._retries.append(self._clock())

    @property
    def available(self) -> bool:
        """Whether one more retry is allowed."""
        if len(self._retries) < MIN_RETRIES:
            return True
        self._expire()
        return len(self._retries) < MIN_RETRIES + RETRY_RATIO * len(self._requests)

    def _expire(self) -> None:
        since = self._clock() - WINDOW
        for times in (self._requests, self._retries):
            while times and times[0] <= since:
                times.popleft()
