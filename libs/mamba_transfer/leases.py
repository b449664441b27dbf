"""Leases: how long an export may live without a sign of its reader.

A lease ends for good: whoever renews it too late learns so. The clock is a parameter; nothing here has a
thread, so the owner of a table sweeps it.
"""

import threading
from collections.abc import Callable

Clock = Callable[[], float]
LONGEST_LIFE = 10
"""Life of a lease in times of its length, however often it is renewed."""


class Lease:
    """A right to read one export until it ends. Safe to use from several threads."""

    def __init__(self, export: str, seconds: float, clock: Clock) -> None:
        """Grant a lease of `seconds` for the export named `export`."""
        self.export = export
        self.seconds = seconds
        self._clock = clock
        self._limit = clock() + LONGEST_LIFE * seconds
        self._end = clock() + seconds
        self._over = False
        self._one = threading.Lock()

    @property
    def live(self) -> bool:
        """Return whether the lease has not ended. A lease that has ended once is never live again."""
        with self._one:
            return self._still_live()

    @property
    def remaining(self) -> float:
        """Return the seconds until the end; 0 once it has ended."""
        with self._one:
            return max(0.0, self._end - self._clock()) if self._still_live() else 0.0

    def renew(self) -> bool:
        """Move the end to a whole length from now, within the longest life. Return whether it was live."""
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
    """Leases of the exports of one engine that no reader has opened yet. Safe to use from several threads."""

    def __init__(self, clock: Clock) -> None:
        """Keep no lease yet. `clock`: seconds that never go back."""
        self._clock = clock
        self._leases: dict[str, Lease] = {}
        self._one = threading.Lock()

    def __len__(self) -> int:
        with self._one:
            return len(self._leases)

    def grant(self, export: str, seconds: float) -> Lease:
        """Return a new lease for `export`, and keep it until it is taken, released or swept."""
        lease = Lease(export, seconds, self._clock)
        with self._one:
            self._leases[export] = lease
        return lease

    def renew(self, export: str) -> bool:
        """Renew the lease of `export`. Return whether there is a live one."""
        with self._one:
            lease = self._leases.get(export)
        return lease is not None and lease.renew()

    def take(self, export: str) -> Lease | None:
        """Return the live lease of `export` to its reader, and keep it no longer; None if there is none.

        A lease that has ended stays for the sweep, which returns it to the owner of the export.
        """
        with self._one:
            lease = self._leases.get(export)
            if lease is None or not lease.live:
                return None
            return self._leases.pop(export)

    def release(self, export: str) -> bool:
        """End the lease of `export` before its time. Return whether it was kept."""
        with self._one:
            lease = self._leases.pop(export, None)
        if lease is not None:
            lease.end()
        return lease is not None

    def sweep(self) -> list[str]:
        """Return the exports whose leases have ended, and forget them: their owner frees their memory."""
        with self._one:
            over = [export for export, lease in self._leases.items() if not lease.live]
            for export in over:
                del self._leases[export]
        return over
