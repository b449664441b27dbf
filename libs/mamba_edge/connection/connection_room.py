"""Which connection has to go when more are open than one server takes: never one that asks for a probe.

Most of them wait for a request of their client, and whoever waits longest goes. A request is refused when too
many others are under way, and then probes still pass: else whoever watches the process would take it for
dead. Used by the connections of our server; it knows nothing of HTTP but the paths of the probes.
"""

from typing import Protocol

PROBES = frozenset(("/livez", "/readyz", "/health", "/metrics"))
"""What is answered however many requests are under way."""
SLOW_BODY_SECONDS = 5.0
"""A body that has been arriving for so long gives way to a new request."""
FEWEST_SPARE = 8
"""Connections that may wait beside as many requests as are taken, whatever the limit."""


class Evictable(Protocol):
    """A connection that may be asked to go."""

    def evict(self) -> None:
        """Close the connection."""


class ConnectionRoom:
    """The connections of one server: at most `limit` with a request under way."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._spare = self.spare_of(limit)
        self._open: set[Evictable] = set()
        self._waiting: dict[Evictable, None] = {}
        """Those without a request under way; the first has waited longest."""
        self._sending: dict[Evictable, float] = {}
        """Those whose request's body has not arrived whole, with the time at which it began; the first is
        the oldest."""

    @staticmethod
    def spare_of(limit: int) -> int:
        """How many connections without a request are open beside `limit` requests: who asks for a probe
        needs one."""
        return max(FEWEST_SPARE, limit // 4)

    @property
    def busy(self) -> int:
        """Connections with a request under way."""
        return len(self._open) - len(self._waiting)

    def enter(self, connection: Evictable) -> None:
        """Count a connection that was opened; the one that has waited longest goes if there are too many."""
        self._open.add(connection)
        self._waiting[connection] = None
        if len(self._open) > max(self.limit, self.busy + self._spare):
            self._evict(next(iter(self._waiting)))

    def leave(self, connection: Evictable) -> None:
        """Forget a connection that is closed, or is about to be."""
        self._open.discard(connection)
        self._waiting.pop(connection, None)
        self._sending.pop(connection, None)

    def wait(self, connection: Evictable) -> None:
        """Note that the connection waits for a request from now on."""
        self._sending.pop(connection, None)
        if connection in self._open:
            self._waiting[connection] = None

    def admit(self, connection: Evictable, path: str, now: float) -> bool:
        """Whether a request of the connection is taken, whose head came at `now`, in the loop's seconds."""
        # A connection that has left is about to be closed, and counts no more.
        if connection in self._waiting:
            del self._waiting[connection]
            if path in PROBES:
                # Who asks for probes takes no room, and goes like those who ask for nothing.
                self._waiting[connection] = None
                return True
            if self.busy > self.limit and not self._evict_slow_body(now):
                self.leave(connection)
                return False
        self._sending.setdefault(connection, now)
        return True

    def body_complete(self, connection: Evictable) -> None:
        """Note that the body of the connection's request is whole."""
        self._sending.pop(connection, None)

    def _evict_slow_body(self, now: float) -> bool:
        oldest = next(iter(self._sending), None)
        if oldest is None or now - self._sending[oldest] < SLOW_BODY_SECONDS:
            return False
        self._evict(oldest)
        return True

    def _evict(self, connection: Evictable) -> None:
        self.leave(connection)
        connection.evict()
