"""`ChangeLog`: the engine's side of the prefix index: its checkpoints and pages, and their recent changes.

The log is in the API process and is filled from the messages of the engine process. The publisher to Redis
and the gateways that poll directly read it, each from its own position. A reader that is too far behind takes
a snapshot, so the log does not grow with slow readers.
"""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable

from mamba_prefix.messages import (
    Change,
    Heartbeat,
    Snapshot,
    pack_entries,
    pack_hashes,
    unpack_entries,
    unpack_hashes,
)

MAX_CHANGES = 1024
"""Number of batches that are kept for readers."""
MAX_CHANGES_BYTES = 4 << 20
"""Total payload of the batches that are kept, in bytes."""


class ChangeLog:
    """The cached checkpoints and pages of one engine, and the latest batches of their changes, for readers.

    `engine` is the name by which gateways know the engine. `wall` returns seconds since 1970, and
    `new_incarnation` a new identifier for each run of the engine process.
    """

    def __init__(
        self,
        engine: str = "",
        *,
        wall: Callable[[], float] = time.time,
        new_incarnation: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self.engine = engine
        self.incarnation = ""
        self.epoch = 0
        self.seq = 0
        self.fingerprint = ""
        self.page_size = 0
        self.depths: dict[int, int] = {}
        """Tokens of each checkpoint by its hash."""
        self.pages: set[int] = set()
        """Hashes of prefixes whose attention pages are cached, at the rungs of prompts."""
        self.closed = False
        self._wall = wall
        self._new_incarnation = new_incarnation
        self._changes: deque[Change] = deque()
        self._changes_bytes = 0
        self._changed = asyncio.Event()

    # --- changes of the engine -----------------------------------------------------------------------

    def start(self, fingerprint: str, page_size: int) -> None:
        """Begin anew for an engine process that has become ready, with an empty cache."""
        self.fingerprint, self.page_size = fingerprint, page_size
        self._begin()

    def lose(self) -> None:
        """Record that the engine process has ended: nothing of its cache can be resumed any more."""
        if self.depths or self.pages:
            self._begin()

    def _begin(self) -> None:
        self.incarnation = self._new_incarnation()
        self.epoch, self.seq = 1, 0
        self.depths.clear()
        self.pages.clear()
        self._changes.clear()
        self._changes_bytes = 0
        self._append(cleared=True, gained=b"", lost=b"", pages_gained=b"", pages_lost=b"")

    def take(
        self,
        epoch: int,
        *,
        cleared: bool,
        gained: bytes,
        lost: bytes,
        pages_gained: bytes = b"",
        pages_lost: bytes = b"",
    ) -> None:
        """Apply one batch of changes, whose fields the engine process has packed as in `messages.Change`."""
        self.epoch = epoch
        if cleared:
            self.depths.clear()
            self.pages.clear()
        for lost_hash in unpack_hashes(lost):
            self.depths.pop(lost_hash, None)
        self.depths.update(unpack_entries(gained))
        self.pages.difference_update(unpack_hashes(pages_lost))
        self.pages.update(unpack_hashes(pages_gained))
        self._append(
            cleared=cleared, gained=gained, lost=lost, pages_gained=pages_gained, pages_lost=pages_lost
        )

    def _append(
        self, *, cleared: bool, gained: bytes, lost: bytes, pages_gained: bytes, pages_lost: bytes
    ) -> None:
        self.seq += 1
        change = Change(
            self.engine, self.incarnation, self.epoch, self.seq, cleared, gained, lost, self._wall(),
            pages_gained=pages_gained, pages_lost=pages_lost,
        )  # fmt: skip
        self._changes.append(change)
        self._changes_bytes += change.payload
        while len(self._changes) > MAX_CHANGES or (
            self._changes_bytes > MAX_CHANGES_BYTES and len(self._changes) > 1
        ):
            oldest = self._changes.popleft()
            self._changes_bytes -= oldest.payload
        self._wake()

    def close(self) -> None:
        """End the log, and wake all readers that wait."""
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # --- reading --------------------------------------------------------------------------------------

    async def wait_for_change(self) -> None:
        """Return after the next change."""
        if not self.closed:
            await self._changed.wait()

    def since(self, incarnation: str, seq: int, most: int = MAX_CHANGES) -> list[Change] | None:
        """Return at most `most` batches after the batch `seq`; None = the reader needs a snapshot.

        A snapshot is needed if `incarnation` is an earlier run of the engine, or if a batch after `seq` is no
        longer kept.
        """
        if incarnation != self.incarnation or seq > self.seq:
            return None
        first = self.seq - len(self._changes)
        if seq < first:
            return None
        skip = seq - first
        return [self._changes[index] for index in range(skip, min(len(self._changes), skip + most))]

    def heartbeat(self) -> Heartbeat:
        """Return a heartbeat with the current position."""
        return Heartbeat(
            self.engine, self.incarnation, self.epoch, self.seq, self.fingerprint, self.page_size
        )

    def snapshot(self, after: str = "") -> Snapshot:
        """Return all checkpoints and pages as of now.

        `after` is the position in the stream of Redis behind which all later batches are; "" without Redis.
        """
        return Snapshot(
            self.engine, self.incarnation, self.epoch, self.seq, self.fingerprint, self.page_size,
            pack_entries(self.depths), after, pages=pack_hashes(self.pages),
        )  # fmt: skip
