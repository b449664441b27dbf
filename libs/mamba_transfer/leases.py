"""Leases: how long an export is kept for a reader that gives no sign that it still wants the export.

A lease that has ended is never live again: a reader that renews it too late learns that it has ended. The
clock is a parameter, and nothing here runs in a thread of its own, so the owner of a table calls `sweep`
regularly.
"""

import threading
from collections.abc import Callable

Clock = Callable[[], float]
LONGEST_LIFE = 10
"""Maximum age of a lease that is renewed again and again, as a multiple of the lease's length."""


class Lease:
    """Lets one export be read until a certain time. Several threads may use it."""

    def __init__(self, export: str, seconds: float, clock: Clock) -> None:
        """Grant a lease of `seconds` for the export with the name `export`."""
        self.export = export
        self.seconds = seconds
        self._clock = clock
        self._limit = clock() + LONGEST_LIFE * seconds
        self._end = clock() + seconds
        self._over = False
        self._one = threading.Lock()

    @property
    def live(self) -> bool:
        """Whether the lease has not ended."""
        with self._one:
            return self._still_live()

    @property
    def remaining(self) -> float:
        """Number of seconds until the lease ends; 0 once it has ended."""
        with self._one:
            return max(0.0, self._end - self._clock()) if self._still_live() else 0.0

    def renew(self) -> bool:
        """Extend the lease by its length from now, up to the maximum age. Return whether it had not ended."""
        with self._one:
            if live := self._still_live():
                self._end = min(self._limit, self._clock() + self.seconds)
            return live

    def end(self) -> None:
        """End the lease now."""
        with self._one:
            self._over = True

    def _still_live(self) -> bool:
        self._over = self._over or self._clock() >= self._end
        return not self._over


class LeaseTable:
    """Keeps the leases of an engine's exports that nobody has opened yet, and finds those that have ended.

    Several threads may use it.
    """

    def __init__(self, clock: Clock) -> None:
        """Create an empty table. `clock` returns seconds that never decrease."""
        self._clock = clock
        self._leases: dict[str, Lease] = {}
        self._one = threading.Lock()

    def __len__(self) -> int:
        with self._one:
            return len(self._leases)

    def grant(self, export: str, seconds: float) -> Lease:
        """Return a new lease for `export`; the table holds it until it is taken, released or swept."""
        lease = Lease(export, seconds, self._clock)
        with self._one:
            self._leases[export] = lease
        return lease

    def renew(self, export: str) -> bool:
        """Renew the lease of `export`. Return whether the table holds one that has not ended."""
        with self._one:
            lease = self._leases.get(export)
        return lease is not None and lease.renew()

    def take(self, export: str) -> Lease | None:
        """Remove the lease of `export` for the reader that opens the export, and return it.

        The result is None if there is no lease, or it has ended. A lease that has ended stays in the table
        until `sweep` reports it to the owner of the export.
        """
        with self._one:
            lease = self._leases.get(export)
            if lease is None or not lease.live:
                return None
            return self._leases.pop(export)

    def release(self, export: str) -> bool:
        """End the lease of `export` early and remove it. Return whether the table held it."""
        with self._one:
            lease = self._leases.pop(export, None)
        if lease is not None:
            lease.end()
        return lease is not None

    def sweep(self) -> list[str]:
        """Remove the leases that have ended. Return the names of their exports, whose memory can be freed."""
        with self._one:
            over = [export for export, lease in self._leases.items() if not lease.live]
            for export in over:
                del self._leases[export]
        return over
