"""`MemoryHistory`: entries in the memory of one process, for a deployment without a Redis.

Entries live for a time from their last use. A client beyond its budget loses the entries that it has not used
for the longest time, and so do all clients together beyond the budget of the process.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence

from mamba_edge.history.entries import with_content, with_id

ALL_CLIENTS = 4
"""Budget of the process, as a multiple of one client's."""
OVERHEAD_BYTES = 200
"""Bytes that an entry takes beside its content."""
_Key = tuple[str, str]


class MemoryHistory:
    """Keeps responses and conversations in memory; the least recently used ones go first."""

    def __init__(self, seconds: float, budget: int, clock: Callable[[], float]) -> None:
        """Keep entries for `seconds` after their last use, and `budget` bytes of them for each client."""
        self._seconds, self._budget, self._clock = seconds, budget, clock
        self._entries: OrderedDict[_Key, tuple[float, bytes]] = OrderedDict()
        self._held: dict[str, int] = {}

    @property
    def held(self) -> int:
        """Number of bytes of all entries."""
        return sum(self._held.values())

    async def load(self, client: str, ids: Sequence[str]) -> list[bytes | None]:
        """Return the entries with the identifiers `ids`, in that order; None in place of one that is missing.

        The lifetime of each entry that is returned begins anew.
        """
        self._expire()
        return [self._use((client, id_)) for id_ in ids]

    async def save(self, client: str, id_: str, entry: bytes, conversation: str = "") -> bool:
        """Keep an entry, and add its identifier to the entry of `conversation` unless that is "".

        Return False, and keep nothing, if the entry is larger than the budget of a client or the conversation
        does not exist.
        """
        self._expire()
        if len(entry) + OVERHEAD_BYTES > self._budget:
            return False
        if conversation:
            line = self._use((client, conversation))
            if line is None:
                return False
            self._put((client, conversation), with_id(line, id_))
        self._put((client, id_), entry)
        self._make_room(client)
        return True

    async def replace(self, client: str, id_: str, content: bytes) -> bool:
        """Replace all of an entry but its first line, in one step; the entry's lifetime begins anew.

        Return False, and change nothing, if there is no such entry, or if it would be larger than the budget
        of a client.
        """
        self._expire()
        if (client, id_) not in self._entries:
            return False
        changed = with_content(self._entries[client, id_][1], content)
        if len(changed) + OVERHEAD_BYTES > self._budget:
            return False
        self._put((client, id_), changed)
        self._make_room(client)
        return True

    async def delete(self, client: str, id_: str) -> bool:
        """Delete an entry; return False if there is none."""
        self._expire()
        if (client, id_) not in self._entries:
            return False
        self._drop((client, id_))
        return True

    async def close(self) -> None:
        """Do nothing: the entries end with the process."""

    def _use(self, key: _Key) -> bytes | None:
        if key not in self._entries:
            return None
        entry = self._entries[key][1]
        self._entries[key] = (self._clock(), entry)
        self._entries.move_to_end(key)
        return entry

    def _put(self, key: _Key, entry: bytes) -> None:
        if key in self._entries:
            self._drop(key)
        self._entries[key] = (self._clock(), entry)
        self._held[key[0]] = self._held.get(key[0], 0) + len(entry) + OVERHEAD_BYTES

    def _make_room(self, client: str) -> None:
        while self._held[client] > self._budget:
            self._drop(next(key for key in self._entries if key[0] == client))
        while self.held > ALL_CLIENTS * self._budget:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: _Key) -> None:
        _, entry = self._entries.pop(key)
        self._held[key[0]] -= len(entry) + OVERHEAD_BYTES
        if not self._held[key[0]]:
            del self._held[key[0]]

    def _expire(self) -> None:
        until = self._clock() - self._seconds
        while self._entries:
            key, (used, _) = next(iter(self._entries.items()))
            if used > until:
                return
            self._drop(key)
