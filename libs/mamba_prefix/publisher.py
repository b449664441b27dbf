"""Publishes one engine's changes to Redis, from its API process. Nobody waits for it.

A batch at a time in order, a heartbeat each second, a snapshot now and then. When Redis is away it tries
again, ever less often, and goes on where it was; what it cannot catch up with is in the next snapshot.
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
"""Most batches in one round trip."""
BATCHES_A_SNAPSHOT = 256
"""A new gateway reads at most so many batches after a snapshot."""


class Publisher:
    """Follows one log. Its numbers are for metrics."""

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
        """Where the last batch stands in the stream."""
        self._since_snapshot = 0
        self._beaten: Heartbeat | None = None

    async def run(self) -> None:
        """Publish until the log is closed; only cancelling ends it before."""
        while not self._log.closed:
            try:
                await self._publish()
            except RedisAway as error:
                if self.connected or not self._backoff.failures:
                    log.warning("prefix index not published", reason=str(error))
                self.connected = False
                self.failures += 1
                await asyncio.sleep(self._backoff.failed())
            except Exception:
                # A defect here must not end what goes on without the index.
                log.exception("prefix index not published")
                self.connected = False
                self.failures += 1
                await asyncio.sleep(LONGEST_PAUSE)
            else:
                self._backoff.worked()

    async def _publish(self) -> None:
        """One beat: what has changed until then, then the heartbeat. Raises RedisAway."""
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
            # `wait_for` of Python 3.11 may swallow a cancelling that comes with what it waits for.
            async with asyncio.timeout(seconds):
                await self._log.changed()

    async def _send(self) -> None:
        if self._incarnation != self._log.incarnation:
            # Its first batch voids what was there before, so followers need nothing else to go on.
            self._incarnation, self._seq = self._log.incarnation, 0
            self._since_snapshot = BATCHES_A_SNAPSHOT
        behind = self._log.since(self._incarnation, self._seq, BATCHES)
        if behind is None:
            await self._snapshot()
        elif behind:
            packed = [pack(each) for each in behind]
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
        # Only what has been published: who reads it knows that the stream has it.
        said = Heartbeat(
            beat.engine, self._incarnation, beat.epoch, self._seq, beat.fingerprint, beat.page_size
        )
        before, wanted = await self._store.beat(said.engine, pack(said))
        if not self.connected:
            log.info("prefix index published", engine=said.engine)
        self.connected = True
        if not self._as_left(before):
            # Redis was emptied, or failed over to one that had not seen all: its stream begins anew.
            self._after = START
            await self._snapshot()
        elif wanted:
            await self._snapshot()
        self._beaten = said

    def _as_left(self, before: bytes | None) -> bool:
        if before is None:
            return False
        try:
            return unpack(before) == self._beaten
        except ForeignMessage:
            return False

    async def _snapshot(self) -> None:
        made = self._log.snapshot(self._after)
        raw = pack(made)
        await self._store.put_snapshot(made.engine, raw)
        self._incarnation, self._seq = made.incarnation, made.seq
        self._since_snapshot = 0
        self.snapshots += 1
        self.bytes += len(raw)
