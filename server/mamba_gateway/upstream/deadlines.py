"""`Deadlines`: many timeouts of equal length over one timer of the event loop.

Most requests end long before their timeout. Timeouts of equal length expire in the order in which they began,
so beginning and ending one is an insertion into and a removal from a dict, without a timer of its own.
"""

import asyncio
import contextvars
from typing import Protocol


class DeadlineListener(Protocol):
    """Something that has a deadline."""

    def expire(self) -> None:
        """Its time is over."""


class Deadlines:
    """All that are `seconds` long, on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self.loop, self.seconds = loop, seconds
        self._began: dict[DeadlineListener, float] = {}
        """In the order in which they fall due."""
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, listener: DeadlineListener) -> float:
        """Start a timeout that calls `listener.expire` after `seconds` unless ended before. The listener must
        have none running. Returns the loop's time."""
        self._began[listener] = now = self.loop.time()
        if self._timer is None:
            self._arm(self.seconds)
        return now

    def end(self, listener: DeadlineListener) -> None:
        """Cancel the timeout of the listener; no effect if it has none."""
        self._began.pop(listener, None)

    def close(self) -> None:
        """Cancel all timeouts."""
        self._began.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, seconds: float) -> None:
        # It outlives the request that needs it first, and must not hold its context.
        self._timer = self.loop.call_later(seconds, self._on_time, context=contextvars.Context())

    def _on_time(self) -> None:
        # The timer counts as armed until all have expired: `begin` must not arm another one meanwhile.
        left = 0.0
        try:
            while self._began:
                one, began = next(iter(self._began.items()))
                left = began + self.seconds - self.loop.time()
                if left > 0:
                    break
                del self._began[one]
                one.expire()
        finally:
            # One that fails is no reason to forget the others.
            self._timer = None
            if self._began:
                self._arm(max(0.0, left))
