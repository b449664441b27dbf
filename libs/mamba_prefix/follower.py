"""`Follower`: keeps a gateway's prefix index up to date from Redis. No request waits for it or fails by it.

The follower reads the snapshots once, then the stream of changes, and every second the heartbeats, which
reveal dead engines and missed batches; it requests a new snapshot from an engine with missed batches. While
Redis is unreachable the index stays as it is; afterwards it is read again from the start.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping

import structlog

from mamba_prefix.backoff import LONGEST_PAUSE, Backoff
from mamba_prefix.errors import ForeignMessage, RedisAway
from mamba_prefix.messages import Change, Heartbeat, Message, Snapshot, unpack
from mamba_prefix.prefix_index import PrefixIndex, RefusedKind
from mamba_prefix.store import (
    MOST_HEARTBEAT_BYTES,
    MOST_MESSAGE_BYTES,
    MOST_NAMES,
    SNAPSHOTS_AT_ONCE,
    START,
    Store,
)  # fmt: skip

log = structlog.get_logger("mambaserve.prefix")

BLOCK_SECONDS = 0.5
SHORTEST_BLOCK = 0.001
RECONCILE_SECONDS = 1.0
BATCHES_PER_READ = 512
"""Largest number of batches in one answer."""
SILENT_SECONDS = 3.0
"""Seconds without a heartbeat after which an engine counts as dead: Redis may just have been flushed."""
RETURN_SECONDS = LONGEST_PAUSE + 1.0
"""Seconds after a reconnect in which no engine counts as dead: a publisher may be in its longest pause."""


class Follower:
    """The reader that keeps `index`, a gateway's copy, up to date from the Redis behind `store`.

    `on_outcome` is called with the reason of each failure, and with None after each success. `jitter` is that
    of `Backoff`.
    """

    def __init__(
        self,
        index: PrefixIndex,
        store: Store,
        jitter: Callable[[], float] = random.random,
        *,
        on_outcome: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        self._index = index
        self._store = store
        self._backoff = Backoff(jitter)
        self._on_outcome = on_outcome
        self.foreign = 0
        """Number of messages that could not be read because another version wrote them."""
        self._too_large: set[str] = set()
        """Engines whose snapshot is refused. Nothing is known about them; the entries of other engines stay
        valid."""
        self._named: set[tuple[str, str]] = set()
        self._position = START
        self._silent: dict[str, float] = {}
        """By engine: time of the loop since which its heartbeat is missing."""
        self._unsynced: set[str] = set()
        self._grace_until = 0.0
        """Time of the loop until which no engine counts as dead."""

    async def run(self) -> None:
        """Read changes and heartbeats until the task is cancelled."""
        while True:
            try:
                await self._start()
                self._backoff.record_success()
                self._on_outcome(None)
                while True:
                    await self._follow(RECONCILE_SECONDS)
                    await self._reconcile()
            except RedisAway as error:
                if not self._backoff.failures:
                    log.warning("prefix_index_not_followed", reason=str(error))
                self._fail(str(error))
                await asyncio.sleep(self._backoff.record_failure())
            except Exception as error:
                log.exception("prefix_index_not_followed")
                self._fail(type(error).__name__)
                await asyncio.sleep(LONGEST_PAUSE)

    def _fail(self, reason: str) -> None:
        self._index.state = "unavailable"
        self._index.failures += 1
        self._on_outcome(reason)

    async def _start(self) -> None:
        """Read every snapshot and the stream since then. Raises RedisAway."""
        self._unsynced, self._silent = set(), {}
        # If engines cannot write either, all of them would seem to have died.
        await self._store.check_writes()
        self._grace_until = asyncio.get_running_loop().time() + RETURN_SECONDS
        beats = await self._heartbeats()
        afters = await self._read_snapshots([name for name, beat in beats.items() if beat], beats)
        self._position = min(afters, key=_order) if afters else START
        await self._reconcile(beats)
        log.info("prefix_index_followed", engines=len(self._index.engines()), entries=self._index.entries)

    async def _follow(self, seconds: float) -> None:
        """Apply changes from the stream for `seconds`. Raises RedisAway."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while (left := until - loop.time()) > SHORTEST_BLOCK:
            await self._read(min(left, BLOCK_SECONDS))

    async def _read(self, block: float) -> int:
        """Apply the next batches, and return their number, at most `BATCHES_PER_READ`.

        The call waits up to `block` seconds for the first batch.
        """
        batches = await self._store.read(self._position, BATCHES_PER_READ, block)
        for where, raw in batches:
            self._position = where
            message = self._unpack(raw, "batch", where)
            if isinstance(message, Change):
                self._apply(message)
        return len(batches)

    def _apply(self, message: Change) -> None:
        if message.engine in self._unsynced and not message.cleared:
            return  # the snapshot that is due contains more
        if self._index.take_change(message) == "gap":
            self._unsynced.add(message.engine)
        else:
            self._unsynced.discard(message.engine)

    async def _reconcile(self, beats: dict[str, Heartbeat | None] | None = None) -> None:
        """Compare the index with the heartbeats: drop dead engines, read those with missing batches again.

        Raises RedisAway.
        """
        now = asyncio.get_running_loop().time()
        if beats is None:
            beats = await self._heartbeats()
        # Batches are written before the heartbeat that counts them: a batch that is missing now was lost.
        while await self._read(SHORTEST_BLOCK) == BATCHES_PER_READ:
            pass
        engines = {*beats, *self._index.engines()}
        if any(beats.get(engine) is None for engine in engines):
            # Tell a silent engine from a Redis that takes no heartbeats, for which this raises.
            await self._store.check_writes()
        for engine in engines:
            beat = beats.get(engine)
            if beat is None:
                silent = now - self._silent.setdefault(engine, now)
                if silent >= SILENT_SECONDS and now >= self._grace_until:
                    await self._forget(engine)
                continue
            self._silent.pop(engine, None)
            if not self._index.matches(beat):
                self._unsynced.add(engine)
        await self._resync(beats)
        # Names that another program added and removed are forgotten.
        self._index.refused_engines.intersection_update(beats)
        self._unsynced.intersection_update(engines)
        self._too_large.intersection_update(engines)
        # An engine without a place in the index does not affect the entries of the others.
        unsynced = any(self._index.admits(engine) for engine in self._unsynced - self._too_large)
        whole = not unsynced and all(view.fresh for view in self._index.engines().values())
        self._index.state = "following" if whole else "stale"

    async def _forget(self, engine: str) -> None:
        self._index.drop(engine)
        self._unsynced.discard(engine)
        await self._store.forget(engine)
        self._silent.pop(engine, None)

    async def _resync(self, beats: dict[str, Heartbeat | None]) -> None:
        """Read engines with missing batches again: their snapshots, then the stream from there.

        Raises RedisAway.
        """
        engines = {name for name in self._unsynced if self._index.admits(name)}
        for engine in engines:
            self._index.doubt(engine)
        if not engines:
            return
        afters = await self._read_snapshots(engines, beats)
        start = min((*afters, self._position), key=_order)
        if start != self._position:
            for where, raw in await self._store.between(start, self._position):
                start = where
                message = self._unpack(raw, "batch", where)
                # What an earlier process of the engine wrote is void: the snapshot came after it.
                if (
                    isinstance(message, Change)
                    and message.engine in engines
                    and (message.cleared or self._index.has_run(message.engine, message.incarnation))
                ):
                    self._apply(message)
            # The last entry of the stream: a stream that began again may be far behind our position.
            self._position = start
        for engine in engines:
            beat = beats.get(engine)
            if beat is not None and not self._index.matches(beat):
                self._unsynced.add(engine)
            if engine in self._unsynced:
                self._index.doubt(engine, again=True)
                await self._store.want(engine)

    async def _read_snapshots(
        self, engines: Iterable[str], beats: Mapping[str, Heartbeat | None]
    ) -> list[str]:
        """Apply the snapshots of `engines`; return the stream positions behind which their changes follow."""
        out: list[str] = []
        names = sorted(engines)
        for first in range(0, len(names), SNAPSHOTS_AT_ONCE):
            # Apply each group before the next is read, to hold few at once, and skip engines without a place.
            batch = [name for name in names[first : first + SNAPSHOTS_AT_ONCE] if self._index.admits(name)]
            if batch:
                out += self._take_snapshots(await self._store.snapshots(batch), beats)
        return out

    def _take_snapshots(
        self, snapshots: Mapping[str, bytes | int | None], beats: Mapping[str, Heartbeat | None]
    ) -> list[str]:
        out = []
        for engine, raw in snapshots.items():
            beat = beats.get(engine)
            size = raw if isinstance(raw, int) else len(raw or b"")
            self._too_large.discard(engine)
            if size > MOST_MESSAGE_BYTES:
                self._refuse("snapshot", engine, size)
                self._too_large.add(engine)
            message = self._unpack(raw, "snapshot", engine) if isinstance(raw, bytes) else None
            if (
                not isinstance(message, Snapshot)
                or message.engine != engine
                or beat is None
                or beat.incarnation != message.incarnation
            ):
                self._unsynced.add(engine)
            elif self._index.take_snapshot(message):
                self._unsynced.discard(engine)
                out.append(message.after)
        return out

    async def _heartbeats(self) -> dict[str, Heartbeat | None]:
        out: dict[str, Heartbeat | None] = {}
        beats = await self._store.heartbeats(self._index.engines().keys())
        if len(beats) > MOST_NAMES:
            self._refuse("engine", f"more than {MOST_NAMES} engines", 0)
        for engine, raw in beats.items():
            message = self._unpack(raw, "heartbeat", engine) if raw is not None else None
            out[engine] = message if isinstance(message, Heartbeat) and message.engine == engine else None
        return out

    def _unpack(self, raw: bytes, kind: RefusedKind, where: str) -> Message | None:
        limit = MOST_HEARTBEAT_BYTES if kind == "heartbeat" else MOST_MESSAGE_BYTES
        if len(raw) > limit:
            if kind != "snapshot":
                self._refuse(kind, where, len(raw))
            return None
        try:
            return unpack(raw)
        except ForeignMessage:
            self.foreign += 1
            return None

    def _refuse(self, kind: RefusedKind, where: str, size: int) -> None:
        """Count a message that is too large, or an engine too many; log the first of each kind and engine."""
        self._index.refused_messages[kind] += 1
        if (kind, where) not in self._named and len(self._named) < MOST_NAMES:
            self._named.add((kind, where))
            log.warning("prefix_index_message_refused", kind=kind, where=where, bytes=size)


def _order(entry_id: str) -> tuple[int, int]:
    """Return the sort key of a stream entry id: (milliseconds, sequence number)."""
    milliseconds, _, number = entry_id.partition("-")
    return int(milliseconds or 0), int(number or 0)
