"""`Interrupt`: ends a block of a task from outside, as `asyncio.timeout` does, but without a timer of its
own.

`Deadlines` and `SilenceWatch` call `expire`; a request that ends in time pays for no timer and no coroutine.
"""

import asyncio
from types import TracebackType
from typing import Any, Self


class Interrupt:
    """Raises TimeoutError where the block is, once `expire` was called in it."""

    __slots__ = ("_cancelling", "_owner", "_task", "fired")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        """`task`: the one that runs the block."""
        self._owner = task
        self.fired = False
        self._task: asyncio.Task[Any] | None = None
        """None outside of the block."""
        self._cancelling = 0

    def __enter__(self) -> Self:
        self._task = self._owner
        self._cancelling = self._owner.cancelling()
        return self

    def expire(self) -> None:
        """End the block. Outside of it nothing happens."""
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
