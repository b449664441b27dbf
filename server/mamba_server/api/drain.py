"""Stop admitting and finish: who is under way, and whether new requests are welcome.

The generation endpoints enter it, SIGTERM and the admin server turn it. Pure but for the event it sets.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import contextmanager

from mamba_edge.errors import ServerDraining
from mamba_edge.exchange.request_arrivals import RequestArrivals


class Drain:
    """Counts HTTP requests under way; while draining it refuses new ones."""

    def __init__(self) -> None:
        self.draining = False
        self.arrivals = RequestArrivals()
        self.under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Around one HTTP request. Raises ServerDraining while it drains."""
        self.arrivals.record()
        if self.draining:
            raise ServerDraining(
                "the server is draining: it finishes what runs and takes nothing new; try another"
            )
        self.under_way += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.under_way -= 1
            if not self.under_way:
                self._idle.set()

    async def finished(self, deadline: float) -> bool:
        """Wait until nothing is under way, `deadline` seconds at most; whether it came to that."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline):
                await self._idle.wait()
        return self._idle.is_set()
