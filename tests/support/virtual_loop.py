"""An event loop with a clock of its own for tests that use sockets within one process.

Its time moves only when nothing else can happen: no callback is due, no socket has anything, and no thread of
the loop's executor is at work. Then it jumps to the next timer. So a slow machine makes such a test slow and
never changes what it sees. Nothing that comes from another process may be waited for with a time limit.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Mapping
from typing import Any

GRACE = 0.05
"""Real seconds in which what was written on this machine reaches its reader's socket."""
STUCK = 60.0
"""Real seconds without any timer or traffic after which the test is over."""


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting for a timer, moves the loop's clock to it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.in_threads = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or (timeout > 0 and self.in_threads):
            if events := super().select(STUCK):
                return events
            raise AssertionError(f"nothing happened for {STUCK:g} s, and no timer is due")
        if (events := super().select(0)) or timeout <= 0:
            return events
        if events := super().select(GRACE):
            return events
        self.now += timeout
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A selector loop whose `time()` starts at zero and jumps."""

    def __init__(self) -> None:
        self._clock = _JumpingSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
        future = super().run_in_executor(executor, func, *args)
        self._clock.in_threads += 1
        future.add_done_callback(self._one_less)
        return future

    def _one_less(self, _: asyncio.Future[Any]) -> None:
        self._clock.in_threads -= 1


def loop_factories(item: Any) -> Mapping[str, Any]:
    """Choose for pytest-asyncio: virtual time, unless the test's module says `REAL_TIME = True`."""
    real = getattr(item.module, "REAL_TIME", False)
    return {"real": asyncio.new_event_loop} if real else {"virtual": VirtualTimeLoop}
