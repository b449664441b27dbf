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
"""Number of equal parts of the waiting time, between which the event loop reads its sockets. A single timer
would not do: on a busy processor the loop may run late, so that the timer is due before the loop has read the
requests that arrived in the meantime."""


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
            # -1: the part in which the last request arrives or ends does not count either.
            quiet = -1 if busy() or seen != self._count else quiet + 1
            seen = self._count
