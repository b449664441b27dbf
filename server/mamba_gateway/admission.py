"""Admission: bounds how many requests the gateway has, and how many of them are relayed at once.

A request is admitted before its body is read, so that memory is bounded, and then waits, first come first
served, for a permit. The proxy endpoint calls it; it knows nothing of endpoints or HTTP.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Protocol

from mamba_edge.errors import TooManyRequests
from mamba_gateway.errors import Draining

DRAINING = "the gateway is draining: it finishes what runs and takes nothing new; send the request again"


class Clock(Protocol):
    """Monotonic seconds."""

    def __call__(self) -> float: ...


def retry_after(queued: int, permits: int, service_seconds: float) -> float:
    """Seconds until a permit is likely to be free: the queue before the client, at the mean service time.

    Between 1 and 60, whole seconds, since that is what `Retry-After` carries.
    """
    return float(min(60, max(1, math.ceil((queued + 1) * service_seconds / permits))))


class Admission:
    """At most `max_in_flight` relayed and `max_queue` more waiting."""

    def __init__(self, max_in_flight: int, max_queue: int, queue_timeout: float, clock: Clock) -> None:
        self.max_in_flight, self.max_queue, self.queue_timeout = max_in_flight, max_queue, queue_timeout
        self.draining = False
        self.admitted = 0
        """Requests admitted and not finished: in flight, waiting, or still sending their body."""
        self.in_flight = 0
        self._permits = asyncio.Semaphore(max_in_flight)
        self._clock = clock
        self._service_seconds = 1.0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def queued(self) -> int:
        """Requests admitted and not relayed yet."""
        return self.admitted - self.in_flight

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Count as admitted for the block. Raises `TooManyRequests` at the limit, `Draining` in a drain."""
        if self.draining:
            raise Draining(DRAINING)
        if self.admitted >= self.max_in_flight + self.max_queue:
            raise TooManyRequests(
                f"{self.in_flight} requests are running and {self.queued} are waiting; retry later",
                retry_after=self._retry_after(),
            )
        self.admitted += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.admitted -= 1
            if self.admitted == 0:
                self._idle.set()

    @asynccontextmanager
    async def permit(self) -> AsyncIterator[None]:
        """Hold a permit to relay. Raises `TooManyRequests` when none came free in time."""
        try:
            async with asyncio.timeout(self.queue_timeout):
                await self._permits.acquire()
        except TimeoutError:
            message = f"the request waited {self.queue_timeout:g} s for its turn; retry later"
            raise TooManyRequests(message, retry_after=self._retry_after()) from None
        self.in_flight += 1
        begin = self._clock()
        try:
            yield
        finally:
            self.in_flight -= 1
            self._permits.release()
            self._service_seconds += 0.1 * (self._clock() - begin - self._service_seconds)

    async def idle(self) -> None:
        """Return when no request is admitted."""
        await self._idle.wait()

    def _retry_after(self) -> float:
        return retry_after(self.queued, self.max_in_flight, self._service_seconds)
