"""Decides which connection to close when more are open than a server takes.

Most connections wait for a request of their client, and the one that has waited longest is closed first. A
connection is not closed before its first bytes could be read: many clients may connect at once, and each of
them would take the place of one whose request has arrived. A request is refused when too many others are
under way, but probes are still answered: otherwise a monitor would take the process for dead. Used by the
connections of our server; of HTTP it knows only the paths of the probes.
"""

from typing import Protocol

PROBES = frozenset(("/livez", "/readyz", "/health", "/metrics"))
"""Paths that are answered regardless of the number of requests under way."""
SLOW_BODY_SECONDS = 5.0
"""Seconds after which a body that is still arriving gives way to a new request."""
FEWEST_SPARE = 8
"""Minimum number of connections that may wait in addition to those with a request under way."""


class Evictable(Protocol):
    """A connection that `ConnectionRoom` may close to make room for another one."""

    def evict(self) -> None:
        """Close the connection."""


class ConnectionRoom:
    """Limits the connections of one server: at most `limit` have a request under way, and few more wait."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._spare = self.spare_of(limit)
        self._open: set[Evictable] = set()
        self._unread: set[Evictable] = set()
        """Connections whose first bytes could not be read yet."""
        self._waiting: dict[Evictable, None] = {}
        """Connections without a request under way, or with a probe, which a client that reads no answers may
        have for long; longest wait first."""
        self._sending: dict[Evictable, float] = {}
        """Connections whose request's body has not arrived completely, with the time at which it began;
        oldest first."""

    @staticmethod
    def spare_of(limit: int) -> int:
        """Return how many connections without a request, or with a probe, may be open besides `limit`."""
        return max(FEWEST_SPARE, limit // 4)

    @property
    def busy(self) -> int:
        """Number of connections with a request under way, other than a probe."""
        return len(self._open) - len(self._unread) - len(self._waiting)

    @property
    def places(self) -> int:
        """Number of connections that may still enter before the first bytes of the last ones are read."""
        return max(0, self._spare - len(self._unread))

    def enter(self, connection: Evictable) -> None:
        """Count a new connection.

        If there are too many, the one that has waited longest for a request is closed.
        """
        self._open.add(connection)
        self._unread.add(connection)
        self._make_room()

    def end_first_read(self, connection: Evictable) -> None:
        """Record that the bytes that had arrived before the connection entered have been read."""
        if connection in self._unread:
            self._unread.discard(connection)
            self._waiting[connection] = None
            self._make_room()

    def leave(self, connection: Evictable) -> None:
        """Count a connection no longer, since it is closed or about to be."""
        self._open.discard(connection)
        self._unread.discard(connection)
        self._waiting.pop(connection, None)
        self._sending.pop(connection, None)

    def wait(self, connection: Evictable) -> None:
        """Record that the connection waits for a request from now on."""
        self._sending.pop(connection, None)
        if connection in self._open:
            self._waiting[connection] = None

    def admit(self, connection: Evictable, path: str, now: float) -> bool:
        """Return whether the server takes a request for `path` whose head arrived at `now` (loop's seconds).

        A probe is always taken. Any other request is refused if `limit` requests are under way and none of
        them has been sending its body for `SLOW_BODY_SECONDS`; the connection of such a slow body is closed
        instead.
        """
        # A connection that has left is about to be closed and is not counted.
        if connection in self._waiting or connection in self._unread:
            self._unread.discard(connection)
            if path in PROBES:
                # A connection with a probe takes no room, and may be closed like one without a request. It
                # keeps its place: one that asks without end must not outlast those that have just come.
                self._waiting.setdefault(connection)
                return True
            self._waiting.pop(connection, None)
            if self.busy > self.limit and not self._evict_slow_body(now):
                self.leave(connection)
                return False
        self._sending.setdefault(connection, now)
        return True

    def body_complete(self, connection: Evictable) -> None:
        """Record that the body of the connection's request has arrived completely."""
        self._sending.pop(connection, None)

    def _evict_slow_body(self, now: float) -> bool:
        oldest = next(iter(self._sending), None)
        if oldest is None or now - self._sending[oldest] < SLOW_BODY_SECONDS:
            return False
        self._evict(oldest)
        return True

    def _make_room(self) -> None:
        while len(self._open) > max(self.limit, self.busy + self._spare):
            longest = next(iter(self._waiting), None)
            if longest is None:
                return
            self._evict(longest)

    def _evict(self, connection: Evictable) -> None:
        self.leave(connection)
        connection.evict()
