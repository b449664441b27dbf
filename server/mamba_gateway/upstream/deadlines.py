"""Deadlines of one length: what many requests have each, over one timer of the loop.

Most requests end long before any of their limits. All limits of one kind are as long, so they fall due in the
order in which they began: to begin and to end one is an entry of a dict, and no timer is wound.
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
        """Let it fall due after `seconds`, unless it ends before. It has not begun already. Returns the time
        of the loop."""
        self._began[listener] = now = self.loop.time()
        if self._timer is None:
            self._arm(self.seconds)
        return now

    def end(self, listener: DeadlineListener) -> None:
        """It does not fall due any more. Of what did already, or never began, nothing happens."""
        self._began.pop(listener, None)

    def close(self) -> None:
        """Nothing falls due any more."""
        self._began.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, seconds: float) -> None:
        # It outlives the request that needs it first, and must not hold its context.
        self._timer = self.loop.call_later(seconds, self._on_time, context=contextvars.Context())

    def _on_time(self) -> None:
        # The timer counts as wound until all are told: who begins meanwhile winds none of its own.
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
