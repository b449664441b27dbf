"""Publishes one engine's changes to Redis, from its API process. Nothing waits for it.

The publisher writes all batches of changes in order, a heartbeat each second, and a snapshot now and then.
While Redis is away it tries again at growing intervals and continues at its position; changes that it cannot
catch up with are in the next snapshot.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable

import structlog

from mamba_prefix.backoff import LONGEST_PAUSE, Backoff
from mamba_prefix.change_log import ChangeLog
from mamba_prefix.errors import ForeignMessage, RedisAway
from mamba_prefix.messages import Heartbeat, pack, unpack
from mamba_prefix.store import START, Store

log = structlog.get_logger("mambaserve.prefix")

BEAT_SECONDS = 1.0
SHORTEST_WAIT = 0.001
BATCHES = 128
"""Largest number of batches in one round trip."""
BATCHES_A_SNAPSHOT = 256
"""Largest number of batches that a new gateway reads after a snapshot."""


class Publisher:
    """The writer of one engine's `ChangeLog` to Redis. Its public numbers are for metrics.

    `jitter` is that of `Backoff`.
    """

    def __init__(self, changes: ChangeLog, store: Store, jitter: Callable[[], float] = random.random) -> None:
        self._log = changes
        self._store = store
        self._backoff = Backoff(jitter)
        self.connected = False
        self.batches = 0
        self.bytes = 0
        self.snapshots = 0
        self.failures = 0
        self._incarnation = ""
        self._seq = 0
        self._after = START
        """Position in the stream of the last batch that was written."""
        self._since_snapshot = 0
        self._last_beat: Heartbeat | None = None

    async def run(self) -> None:
        """Publish until the log is closed or the task is cancelled."""
        while not self._log.closed:
            try:
                await self._publish()
            except RedisAway as error:
                if self.connected or not self._backoff.failures:
                    log.warning("prefix_index_not_published", reason=str(error))
                self.connected = False
                self.failures += 1
                await asyncio.sleep(self._backoff.record_failure())
            except Exception:
                # A defect here must not end the engine, which works without the index.
                log.exception("prefix_index_not_published")
                self.connected = False
                self.failures += 1
                await asyncio.sleep(LONGEST_PAUSE)
            else:
                self._backoff.record_success()

    async def _publish(self) -> None:
        """Publish for one heartbeat interval: a heartbeat, then changes as they come. Raises RedisAway."""
        if not self._log.page_size:
            await self._changed_within(BEAT_SECONDS)
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + BEAT_SECONDS
        await self._beat()
        while not self._log.closed and (left := due - loop.time()) > SHORTEST_WAIT:
            if self._log.incarnation == self._incarnation and self._log.seq == self._seq:
                await self._changed_within(left)
            await self._send()

    async def _changed_within(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            # `wait_for` of Python 3.11 may swallow a cancellation that comes together with its result.
            async with asyncio.timeout(seconds):
                await self._log.wait_for_change()

    async def _send(self) -> None:
        if self._incarnation != self._log.incarnation:
            # The first batch of an incarnation voids all earlier ones, so followers need nothing else.
            self._incarnation, self._seq = self._log.incarnation, 0
            self._since_snapshot = BATCHES_A_SNAPSHOT
        behind = self._log.since(self._incarnation, self._seq, BATCHES)
        if behind is None:
            await self._snapshot()
        elif behind:
            packed = [pack(batch) for batch in behind]
            self._after = await self._store.append(packed)
            self._seq = behind[-1].seq
            self.batches += len(packed)
            self.bytes += sum(map(len, packed))
            self._since_snapshot += len(packed)
            if self._since_snapshot >= BATCHES_A_SNAPSHOT:
                await self._snapshot()

    async def _beat(self) -> None:
        await self._send()
        beat = self._log.heartbeat()
        # The position of the last published batch: a reader relies on the stream having it.
        published = Heartbeat(
            beat.engine, self._incarnation, beat.epoch, self._seq, beat.fingerprint, beat.page_size
        )
        before, is_requested = await self._store.beat(published.engine, pack(published))
        if not self.connected:
            log.info("prefix_index_published", engine=published.engine)
        self.connected = True
        if not self._is_last_beat(before):
            # Redis was emptied, or failed over to a replica that lacks the end of the stream, which restarts.
            self._after = START
            await self._snapshot()
        elif is_requested:
            await self._snapshot()
        self._last_beat = published

    def _is_last_beat(self, before: bytes | None) -> bool:
        if before is None:
            return False
        try:
            return unpack(before) == self._last_beat
        except ForeignMessage:
            return False

    async def _snapshot(self) -> None:
        snapshot = self._log.snapshot(self._after)
        raw = pack(snapshot)
        await self._store.put_snapshot(snapshot.engine, raw)
        self._incarnation, self._seq = snapshot.incarnation, snapshot.seq
        self._since_snapshot = 0
        self.snapshots += 1
        self.bytes += len(raw)
