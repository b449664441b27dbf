"""Timeouts without a timer per request: `Deadlines` reports expired ones, `Interrupt` ends a block.

Most requests end long before their timeout. Timeouts of equal length expire in the order in which they began,
so beginning one is an insertion into a dict and ending one is a removal. Used by the relay, by the silence
watch, and for the idle limit of upstream connections.
"""

import asyncio
import contextvars
from types import TracebackType
from typing import Any, Protocol, Self


class DeadlineListener(Protocol):
    """Gets a call of `expire` when its deadline in `Deadlines` has passed."""

    def expire(self) -> None:
        """Handle that the deadline has passed."""


class Deadlines:
    """Calls each listener `seconds` after it began to wait, unless its wait was ended before."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self.loop, self.seconds = loop, seconds
        self._began: dict[DeadlineListener, float] = {}
        """Time of the event loop at which each timeout began, in the order in which they expire."""
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, listener: DeadlineListener) -> float:
        """Begin a timeout that calls `listener.expire` after `seconds`, unless it is ended before.

        The listener must have no other timeout here. Return the time of the event loop.
        """
        self._began[listener] = now = self.loop.time()
        if self._timer is None:
            self._arm(self.seconds)
        return now

    def end(self, listener: DeadlineListener) -> None:
        """End the timeout of the listener, if it has one."""
        self._began.pop(listener, None)

    def close(self) -> None:
        """End all timeouts without calling any listener."""
        self._began.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, seconds: float) -> None:
        # The timer outlives the request that started it, so it must not keep that request's context.
        self._timer = self.loop.call_later(seconds, self._on_time, context=contextvars.Context())

    def _on_time(self) -> None:
        # The timer counts as armed until all have expired: `begin` must not arm another one meanwhile.
        left = 0.0
        try:
            while self._began:
                listener, began = next(iter(self._began.items()))
                left = began + self.seconds - self.loop.time()
                if left > 0:
                    break
                del self._began[listener]
                listener.expire()
        finally:
            # The failure of one listener must not keep others from being called.
            self._timer = None
            if self._began:
                self._arm(max(0.0, left))


class Interrupt:
    """Block of a task that can be ended from outside: `expire` makes TimeoutError be raised in it.

    It works as `asyncio.timeout` does, but needs no timer and no coroutine for a request that ends in time.
    """

    __slots__ = ("_cancelling", "_owner", "_task", "fired")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        """Create an interrupt for a block that `task` runs."""
        self._owner = task
        self.fired = False
        """Whether `expire` was called while the block was running."""
        self._task: asyncio.Task[Any] | None = None
        """Task that runs the block; None while it is outside the block."""
        self._cancelling = 0

    def __enter__(self) -> Self:
        self._task = self._owner
        self._cancelling = self._owner.cancelling()
        return self

    def expire(self) -> None:
        """End the block. Without effect while the task is outside it."""
        if self._task is not None and not self.fired:
            self.fired = True
            self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        if not self.fired:
            return
        # If the task was also cancelled by other code, that cancellation continues.
        ours = task is not None and task.uncancel() <= self._cancelling
        if ours and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise TimeoutError from error
