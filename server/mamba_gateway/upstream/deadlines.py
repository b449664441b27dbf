"""Timeouts that cost a request no timer: `Deadlines` says when one is over, `Interrupt` ends a block.

Most requests end long before their timeout. Timeouts of equal length expire in the order in which they began,
so beginning and ending one is an insertion into and a removal from a dict. Used by the relay, by the silence
watch and for the idle limit of upstream connections.
"""

import asyncio
import contextvars
from types import TracebackType
from typing import Any, Protocol, Self


class DeadlineListener(Protocol):
    """Something that has a deadline."""

    def expire(self) -> None:
        """Take note that the deadline has passed."""


class Deadlines:
    """The timeouts of `seconds` on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self.loop, self.seconds = loop, seconds
        self._began: dict[DeadlineListener, float] = {}
        """Loop time at which each timeout began, in the order in which they fall due."""
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, listener: DeadlineListener) -> float:
        """Start a timeout that calls `listener.expire` after `seconds` unless ended before.

        The listener must have none running. Returns the loop's time.
        """
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
        # The timer outlives the request that needs it first, and must not hold its context.
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
            # A listener that fails is no reason to forget the others.
            self._timer = None
            if self._began:
                self._arm(max(0.0, left))


class Interrupt:
    """Ends a block of a task from outside, as `asyncio.timeout` does: `expire` raises TimeoutError there.

    A request that ends in time pays for no timer and no coroutine.
    """

    __slots__ = ("_cancelling", "_owner", "_task", "fired")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        """`task`: the one that runs the block."""
        self._owner = task
        self.fired = False
        """Whether `expire` was called in the block."""
        self._task: asyncio.Task[Any] | None = None
        """The task inside of the block; None outside."""
        self._cancelling = 0

    def __enter__(self) -> Self:
        self._task = self._owner
        self._cancelling = self._owner.cancelling()
        return self

    def expire(self) -> None:
        """End the block; without effect outside of it."""
        if self._task is not None and not self.fired:
            self.fired = True
            self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        if not self.fired:
            return
        # A cancellation by somebody else, which came too, goes on.
        ours = task is not None and task.uncancel() <= self._cancelling
        if ours and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise TimeoutError from error
