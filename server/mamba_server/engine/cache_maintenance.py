"""Maintenance of the cache between steps: sweep flushed checkpoints, and recount the memory.

Both visit everything in the cache, so in one go they would delay all running answers. A recount compares the
account of slots and pages with their holders; it is void when anything changes, so it runs in idle time.
Called by the engine process.
"""

from collections.abc import Callable, Iterator

from mamba_server.cache import ManagedStateCache

MAINTENANCE_SECONDS = 0.002
"""Seconds of one round of maintenance."""


class CacheMaintenance:
    """Does the slow upkeep of `cache` bit by bit between steps; `clock` returns seconds."""

    def __init__(self, cache: ManagedStateCache, clock: Callable[[], float]) -> None:
        self._cache = cache
        self._clock = clock
        self._audit: Iterator[None] | None = None
        self.recounted = True
        """Whether nothing has changed since the memory was recounted."""

    @property
    def due(self) -> bool:
        """Whether an idle engine still has maintenance to do."""
        return self._cache.sweeping or not self.recounted

    def changed(self) -> None:
        """Record a change: an unfinished recount has to begin anew."""
        self._audit = None
        self.recounted = False

    def run(self, *, idle: bool) -> None:
        """Do one round of maintenance. Raises LedgerViolation if the account of the memory is wrong."""
        began = self._clock()
        while self._cache.sweeping:
            self._cache.sweep()
            if self._clock() - began > MAINTENANCE_SECONDS:
                return
        if self.recounted or not idle:
            return
        if self._audit is None:
            self._audit = self._cache.recount()
        for _ in self._audit:
            if self._clock() - began > MAINTENANCE_SECONDS:
                return
        self._audit = None
        self.recounted = True
