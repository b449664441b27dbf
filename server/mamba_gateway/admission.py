"""Admission: bounds how many requests are in the house, and how many of them are relayed at once.

A request enters at the door (before its body is read, so memory is bounded) and then waits, first come first
served, for a place. The ASGI endpoint calls it; it knows nothing of endpoints or HTTP.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Protocol

from mamba_gateway.errors import Draining, Overloaded


class Clock(Protocol):
    """Monotonic seconds."""

    def __call__(self) -> float: ...


def retry_after(queued: int, places: int, service_seconds: float) -> float:
    """Seconds until a place is likely to be free: the queue before the client, at the mean service time.

    Between 1 and 60, whole seconds, since that is what `Retry-After` carries.
    """
    return float(min(60, max(1, math.ceil((queued + 1) * service_seconds / places))))


class Admission:
    """At most `max_in_flight` relayed and `max_queue` more waiting."""

    def __init__(self, max_in_flight: int, max_queue: int, queue_timeout: float, clock: Clock) -> None:
        self.max_in_flight, self.max_queue, self.queue_timeout = max_in_flight, max_queue, queue_timeout
        self.draining = False
        self.inside = 0
        """Requests in the house: in flight, waiting, or still sending their body."""
        self.in_flight = 0
        self._places = asyncio.Semaphore(max_in_flight)
        self._clock = clock
        self._service_seconds = 1.0
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def queued(self) -> int:
        """Requests in the house that are not relayed yet."""
        return self.inside - self.in_flight

    @contextmanager
    def door(self) -> Iterator[None]:
        """Be in the house. Raises `Overloaded` when it is full, `Draining` when it closes."""
        if self.draining:
            raise Draining("the gateway is shutting down; send the request again", retry_after=1)
        if self.inside >= self.max_in_flight + self.max_queue:
            raise Overloaded(
                f"{self.in_flight} requests are running and {self.queued} are waiting; retry later",
                retry_after=self._retry_after(),
            )
        self.inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self.inside -= 1
            if self.inside == 0:
                self._empty.set()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Hold one of the places. Raises `Overloaded` when none came free in time."""
        try:
            async with asyncio.timeout(self.queue_timeout):
                await self._places.acquire()
        except TimeoutError:
            message = f"the request waited {self.queue_timeout:g} s for its turn; retry later"
            raise Overloaded(message, retry_after=self._retry_after()) from None
        self.in_flight += 1
        begin = self._clock()
        try:
            yield
        finally:
            self.in_flight -= 1
            self._places.release()
            self._service_seconds += 0.1 * (self._clock() - begin - self._service_seconds)

    async def empty(self) -> None:
        """Return when nobody is in the house."""
        await self._empty.wait()

    def _retry_after(self) -> float:
        return retry_after(self.queued, self.max_in_flight, self._service_seconds)
