"""Whether requests still come: a process that is about to end takes them until nobody sends any more.

Used by the engine's and the gateway's drain. In Kubernetes those who choose between pods learn that one goes
when it learns it itself, and act on that some time later; how much later nobody can say beforehand.
"""

import asyncio
from collections.abc import Callable

LEAVE_SHARE = 0.5
"""Of the drain timeout, at most, may pass until none comes: what was taken last has the rest to finish in."""
LOOKS = 10
"""A loop that stood still, as where the processor is short, has not seen who came meanwhile; its timers are
due all the same. So the time is counted in so many pieces, between which it sees to its sockets."""


class RequestArrivals:
    """Of one process."""

    def __init__(self) -> None:
        self._count = 0

    def record(self) -> None:
        """A request is here."""
        self._count += 1

    async def none_for(self, seconds: float, busy: Callable[[], bool] = lambda: False) -> None:
        """Return when for so long none has come, and it was not `busy` with those that came before."""
        quiet, seen = 0, self._count
        while quiet < LOOKS:
            await asyncio.sleep(seconds / LOOKS)
            # A piece in which something ended counts for nothing.
            quiet = -1 if busy() or seen != self._count else quiet + 1
            seen = self._count
