"""Watches whether requests still arrive: a process that is about to end takes them until none come any more.

Used by the drains of engine and gateway. In Kubernetes, proxies and endpoint controllers learn that a pod
stops when the pod itself does, and act on it some time later; how much later is not known in advance.
"""

import asyncio
from collections.abc import Callable

LEAVE_SHARE = 0.5
"""Largest share of the drain timeout that may pass until no request arrives. The last request has the rest of
the timeout to finish in."""
LOOKS = 10
"""Number of pieces into which the waiting time is divided, so that the loop handles its sockets between them.
A loop that was held up, as where the processor is short, has not seen the requests that came in the meantime,
while its timers are due all the same."""


class RequestArrivals:
    """Notices when requests arrive at one process, so that a drain can wait until no more come."""

    def __init__(self) -> None:
        self._count = 0

    def record(self) -> None:
        """Count a request that arrived."""
        self._count += 1

    async def none_for(self, seconds: float, busy: Callable[[], bool] = lambda: False) -> None:
        """Return after `seconds` in which no request has arrived and `busy` was False.

        `busy` says whether the process works on earlier requests.
        """
        quiet, seen = 0, self._count
        while quiet < LOOKS:
            await asyncio.sleep(seconds / LOOKS)
            # A piece in which something ended counts for nothing.
            quiet = -1 if busy() or seen != self._count else quiet + 1
            seen = self._count
