"""Whether requests still come: a process that is about to end takes them until nobody sends any more.

Used by the engine's and the gateway's drain. In Kubernetes those who choose between pods learn that one goes
when it learns it itself, and act on that some time later; how much later nobody can say beforehand.
"""

import asyncio

LEAVE_SHARE = 0.5
"""Of the drain timeout, at most, may pass until none comes: what was taken last has the rest to finish in."""


class Arrivals:
    """Of one process."""

    def __init__(self) -> None:
        self._count = 0

    def came(self) -> None:
        """A request is here."""
        self._count += 1

    async def none_for(self, seconds: float) -> None:
        """Return when none has come for so long at least, and twice as long at most."""
        seen = -1
        while seen != self._count:
            seen = self._count
            await asyncio.sleep(seconds)
