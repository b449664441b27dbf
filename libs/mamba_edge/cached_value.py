"""An answer that many ask for each second and that is made once: polling does not slow down serving."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")
KEPT_SECONDS = 0.5
"""How old an answer may be: below the pace at which pages poll."""


class CachedValue(Generic[Value]):
    """`make` is run for the first who asks; those who come meanwhile and shortly after get the same."""

    def __init__(
        self,
        make: Callable[[], Awaitable[Value]],
        *,
        seconds: float = KEPT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make, self._seconds, self._clock = make, seconds, clock
        self._lock = asyncio.Lock()
        self._cached: tuple[Value, float] | None = None

    async def get(self) -> Value:
        """The answer, at most `seconds` old. Raises what `make` raises, and then keeps nothing."""
        async with self._lock:
            if self._cached is None or self._clock() >= self._cached[1]:
                self._cached = None
                self._cached = (await self._make(), self._clock() + self._seconds)
            return self._cached[0]
