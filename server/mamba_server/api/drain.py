"""`Drain`: counts running HTTP requests, and says whether new ones are accepted.

Generation endpoints enter it for each request; SIGTERM and the admin API start and stop draining. Pure, apart
from the event it sets.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import contextmanager

from mamba_edge.errors import ServerDraining
from mamba_edge.exchange.request_arrivals import RequestArrivals


class Drain:
    """Counts running HTTP requests, and refuses new ones while `draining` is set."""

    def __init__(self) -> None:
        self.draining = False
        self.arrivals = RequestArrivals()
        self.under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count one HTTP request while the context is open. Raises ServerDraining if the server drains."""
        self.arrivals.record()
        if self.draining:
            raise ServerDraining(
                "the server is draining: it finishes running requests and accepts no new ones; send this "
                "request to another server"
            )
        self.under_way += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.under_way -= 1
            if not self.under_way:
                self._idle.set()

    async def wait_until_idle(self, deadline: float) -> bool:
        """Wait for running requests, at most `deadline` seconds; return whether all have finished."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline):
                await self._idle.wait()
        return self._idle.is_set()
