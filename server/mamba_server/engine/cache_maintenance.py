"""What the engine does beside its steps, a little after each: sweep out what was flushed, recount its books.

Both look at everything that is cached, so in one go they would hold up all running answers. The recount is
void once anything changes: idle time pays for it. Called by the engine process.
"""

from collections.abc import Callable, Iterator

from mamba_server.cache import ManagedStateCache

MAINTENANCE_SECONDS = 0.002
"""How long it goes on before others have their turn."""


class CacheMaintenance:
    """Of `cache`; `clock` tells seconds."""

    def __init__(self, cache: ManagedStateCache, clock: Callable[[], float]) -> None:
        self._cache = cache
        self._clock = clock
        self._audit: Iterator[None] | None = None
        self.recounted = True
        """Nothing has changed since the books were recounted."""

    @property
    def due(self) -> bool:
        """There is something left to do for an idle engine."""
        return self._cache.sweeping or not self.recounted

    def changed(self) -> None:
        """What was recounted so far is void."""
        self._audit = None
        self.recounted = False

    def run(self, *, idle: bool) -> None:
        """Do some more of it. Raises LedgerViolation where the books are wrong."""
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
