"""The work queue: the keys of the objects that are due. One key never runs twice at the same time.

Several wake-ups of a waiting key count as one; a wake-up of a running key makes it run once more. Failures
are retried with exponential back-off and jitter. The queue knows nothing of Kubernetes; randomness is a
parameter, and the time is the loop's.
"""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
MIN_RETRY_SECONDS = 1.0
"""Seconds for which a failed key ignores wake-ups, because the writes of a failing run wake the key too."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Says how long to wait: `first * 2**n` seconds after n + 1 failures in a row, at most `most`.

    A random part up to `jitter` is taken off.
    """

    first: float = 0.5
    most: float = 60.0
    jitter: float = 0.5

    def delay(self, failures: int, random_unit: float) -> float:
        """Return the seconds to wait after `failures` (>= 1) failures in a row; `random_unit` in [0, 1)."""
        exponent = min(max(failures, 1) - 1, 62)
        return min(self.first * 2.0**exponent, self.most) * (1.0 - self.jitter * random_unit)


class WorkQueue(Generic[K]):
    """Keeps the keys that are due or will be, each once, and lets workers process them.

    `backoff` says how long to wait after failures; `random_unit` returns random numbers in [0, 1) for it.
    """

    def __init__(
        self, backoff: RetryPolicy | None = None, random_unit: Callable[[], float] = random.random
    ) -> None:
        self._backoff = backoff or RetryPolicy()
        self._random = random_unit
        self._due: deque[K] = deque()
        self._waiting: set[K] = set()
        self._running: dict[K, float] = {}
        self._again: set[K] = set()
        self._failures: dict[K, int] = {}
        self._rest: dict[K, float] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._wakeup = asyncio.Event()

    def __len__(self) -> int:
        return len(self._due)

    def add(self, key: K) -> None:
        """Make the key due now; after a failure, in `MIN_RETRY_SECONDS` at the earliest."""
        if key in self._rest and (rest := self._rest[key] - asyncio.get_running_loop().time()) > 0:
            self.add_after(key, rest)
            return
        self._cancel_timer(key)
        if key in self._running:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._due.append(key)
            self._wakeup.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Make the key due in `seconds`, unless it is due earlier."""
        loop = asyncio.get_running_loop()
        when = loop.time() + seconds
        old = self._timers.get(key)
        if old is not None and old.when() <= when:
            return
        self._cancel_timer(key)
        self._timers[key] = loop.call_at(when, self._timer_fired, key)

    def failures(self, key: K) -> int:
        """Return the number of failures in a row of the key."""
        return self._failures.get(key, 0)

    def oldest_run(self) -> float:
        """Return the seconds for which the longest running key has been running; 0 when none runs."""
        now = asyncio.get_running_loop().time()
        return max((now - start for start in self._running.values()), default=0.0)

    async def run(self, work: Callable[[K], Awaitable[float | None]], workers: int) -> None:
        """Work on due keys until cancelled.

        `work` returns the seconds until the key is due again; None = not before it is added again.
        """
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(self._worker(work))

    async def _worker(self, work: Callable[[K], Awaitable[float | None]]) -> None:
        while True:
            key = await self._take()
            try:
                requeue_after = await work(key)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                self._failed(key, getattr(error, "retry_after", None))
            else:
                self._failures.pop(key, None)
                self._rest.pop(key, None)
                if requeue_after is not None:
                    self.add_after(key, requeue_after)
            finally:
                self._running.pop(key, None)
                if key in self._again:
                    self._again.discard(key)
                    # During its back-off, wake-ups of a key must not turn the back-off into a busy loop.
                    if not self._failures.get(key):
                        self.add(key)

    async def _take(self) -> K:
        while not self._due:
            self._wakeup.clear()
            await self._wakeup.wait()
        key = self._due.popleft()
        self._waiting.discard(key)
        self._running[key] = asyncio.get_running_loop().time()
        return key

    def _failed(self, key: K, retry_after: float | None) -> None:
        self._failures[key] = self._failures.get(key, 0) + 1
        delay = self._backoff.delay(self._failures[key], self._random())
        self._rest[key] = asyncio.get_running_loop().time() + min(delay, MIN_RETRY_SECONDS)
        self._cancel_timer(key)
        self.add_after(key, max(delay, retry_after or 0.0))

    def _timer_fired(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def _cancel_timer(self, key: K) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
