"""`Tier`: the store of bundles in host memory and on disk, as the engine uses it.

When the cache evicts a checkpoint, its bytes are copied to the store before their memory is reused. When the
store has the state of a prompt, the state is read back into the arena if that is expected to be faster than
computing it. The engine never waits for the store: a checkpoint that the store, or the staging memory before
it, cannot take is dropped. The staging memory is a few slabs of pinned host memory through which the
checkpoints of a device are copied.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from mamba_planner.arithmetic import prefill_work
from mamba_server.cache import EvictedCheckpoint, Match, Quarantined, Reception, Tokens
from mamba_server.engine.stepping.prefill_speed import PrefillSpeed
from mamba_server.engine.transfers.bandwidth import Bandwidth
from mamba_server.engine.transfers.bundle_memory import (
    Buffers,
    BundleMemory,
    DeviceBundleMemory,
    OutgoingBundle,
)
from mamba_server.engine.transfers.importer import ReadResult, StateSource
from mamba_server.engine.transfers.transfer_counts import TransferCounts
from mamba_tier.bundle_store import BundleStore
from mamba_tier.outcomes import PutOutcome, ReadOutcome
from mamba_transfer.bundle import bundle_bytes

RING_SLABS = 2
"""Number of slabs of the staging memory."""
PAUSE_SECONDS = 0.001
"""Seconds between two checks of the staging memory at the end of the process."""
MAX_RING_BYTES = 256 << 20
"""Maximum size in bytes of a bundle that is copied from a device to the store."""
OUTCOMES = {
    PutOutcome.ACCEPTED: "stored",
    PutOutcome.KNOWN: "known",
    PutOutcome.DROPPED: "dropped",
    PutOutcome.OFF: "off",
}


FULL = frozenset(("dropped", "ring_busy"))
"""Outcomes with which a later attempt may succeed."""


class _Offer(NamedTuple):
    """Says what became of an evicted checkpoint; `outcome` is empty while the device copies its bytes."""

    outcome: str
    size: int
    """Bytes that the store took."""
    began: float
    """Time of the offer, in seconds of the engine's clock."""


@dataclass(slots=True)
class _Victim:
    """An evicted checkpoint whose bytes are being copied from a device to the store."""

    token_ids: Tokens
    salt: str
    first: int
    """First token whose pages are copied."""
    slab: torch.Tensor
    """Slab of the staging memory that the bytes are copied to."""
    outgoing: OutgoingBundle
    began: float
    """Time of the offer, in seconds of the engine's clock."""
    wrong: bool = False
    """Whether it was quarantined meanwhile."""


class Tier:
    """The store below the arena of one engine, in host memory and on disk.

    `speed` is the measured speed of computing prompts, and `bandwidth` the measured speed of reading states
    back; a prompt takes the faster way.
    """

    def __init__(
        self,
        store: BundleStore,
        memory: BundleMemory,
        counts: TransferCounts,
        speed: PrefillSpeed,
        bandwidth: Bandwidth,
        *,
        page_size: int,
        outlives_process: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self.outlives_process = outlives_process
        """Whether the store is on disk, so that the next process of this engine finds its bundles."""
        self._memory, self._counts, self._page_size = memory, counts, page_size
        self._speed, self._bandwidth, self._clock = speed, bandwidth, clock
        self._free_slabs: list[torch.Tensor] = []
        """Unused slabs of the staging memory. Empty where the arena is in host memory, which needs none."""
        self._ring_slabs = RING_SLABS if isinstance(memory, DeviceBundleMemory) else 0
        if isinstance(memory, DeviceBundleMemory):
            self._free_slabs = [memory.host_buffer_of(MAX_RING_BYTES) for _ in range(RING_SLABS)]
        self._copied: deque[_Victim] = deque()
        """Checkpoints whose copy from the device was launched, in the order of their launch."""
        self._stored: deque[tuple[_Victim, str]] = deque()
        """Checkpoints that a thread has passed to the store, each with the outcome."""

    # --- out of the arena ----------------------------------------------------------------------------

    def on_eviction(self, evicted: EvictedCheckpoint) -> None:
        """Copy a checkpoint that is being evicted. The cache calls this between two launches."""
        self._record(evicted.depth, *self._offer(evicted))

    def _offer(self, evicted: EvictedCheckpoint) -> _Offer:
        """Copy a checkpoint into the memory of the store, or begin to copy it from the device."""
        began = self._clock()
        token_ids = evicted.token_ids()
        first = self.store.missing_from(token_ids, evicted.salt)
        if first is None:
            return _Offer("known", 0, began)
        pages = evicted.pages[first // self._page_size :]
        if isinstance(self._memory, DeviceBundleMemory):
            return _Offer(self._copy_out(self._memory, evicted, token_ids, first, began), 0, began)
        buffers = self._memory.outgoing(evicted.slot, pages).buffers
        outcome = self._put(token_ids, evicted.salt, first, buffers)
        return _Offer(outcome, bundle_bytes(self._memory.layout, len(pages)), began)

    def _record(self, depth: int, outcome: str, size: int, began: float) -> None:
        if outcome:
            moved = size if outcome == "stored" else 0
            self._counts.record("demoted", outcome, moved, self._clock() - began, depth=depth)

    def _put(self, token_ids: Tokens, salt: str, first: int, buffers: Buffers) -> str:
        return OUTCOMES[self.store.put(token_ids, salt, buffers[:1], buffers[1:], first)]

    def _copy_out(
        self,
        memory: DeviceBundleMemory,
        evicted: EvictedCheckpoint,
        token_ids: Tokens,
        first: int,
        began: float,
    ) -> str:
        """Launch the copy of a checkpoint into a free slab of the staging memory on the host.

        Return "", or the reason why it cannot start. `first` is the first token whose pages are copied, and
        `began` the time of the clock in seconds.
        """
        pages = evicted.pages[first // self._page_size :]
        size = bundle_bytes(memory.layout, len(pages))
        if size > MAX_RING_BYTES:
            return "too_large"
        if not self._free_slabs:
            return "ring_busy"
        slab = self._free_slabs.pop()
        outgoing = memory.copy_out(evicted.slot, pages, slab)
        self._copied.append(_Victim(token_ids, evicted.salt, first, slab, outgoing, began))
        return ""

    def save(self, checkpoints: Iterable[EvictedCheckpoint], seconds: float) -> None:
        """Offer the checkpoints of an engine that ends to the store, and wait until they are written.

        The checkpoints that are not written after `seconds` are lost.
        """
        end = self._clock() + seconds
        for checkpoint in checkpoints:
            offer = self._offer(checkpoint)
            while offer.outcome in FULL and self._clock() < end:
                self._wait()
                offer = self._offer(checkpoint)
            self._record(checkpoint.depth, *offer)
            if self._clock() >= end:
                break
        while self.pending and self._clock() < end:
            self._wait()
        self.store.save(max(0.0, end - self._clock()))

    def _wait(self) -> None:
        """Pass completed copies to the store and wait a moment. Used at the end of the process."""
        self.poll()
        time.sleep(PAUSE_SECONDS)

    def poll(self) -> None:
        """Pass completed copies to the store, in a thread. The loop calls this between two steps."""
        while self._stored:
            victim, outcome = self._stored.popleft()
            self._free_slabs.append(victim.slab)
            size = sum(buffer.nbytes for buffer in victim.outgoing.buffers) if outcome == "stored" else 0
            depth, seconds = len(victim.token_ids), self._clock() - victim.began
            self._counts.record("demoted", outcome, size, seconds, depth=depth)
        while self._copied and self._copied[0].outgoing.is_ready():
            victim = self._copied.popleft()
            threading.Thread(target=self._drain, args=(victim,), name="demotion", daemon=True).start()

    def _drain(self, victim: _Victim) -> None:
        try:
            victim.outgoing.wait()
            outcome = "wrong"
            if not victim.wrong:
                buffers = victim.outgoing.buffers
                outcome = self._put(victim.token_ids, victim.salt, victim.first, buffers)
        except Exception:
            outcome = "failed"
        self._stored.append((victim, outcome))

    def withdraw(self, quarantined: Iterable[Quarantined]) -> None:
        """Remove the copies of wrong checkpoints, and do not store those that are on their way."""
        for token_ids, salt, _ in quarantined:
            self.store.withdraw(token_ids, salt)
            for victim in self._copied:
                is_below = np.array_equal(victim.token_ids[: len(token_ids)], token_ids)
                victim.wrong = victim.wrong or (victim.salt == salt and is_below)

    @property
    def pending(self) -> bool:
        """Whether checkpoints are being copied from the device to the store."""
        return len(self._free_slabs) < self._ring_slabs

    # --- into the arena ------------------------------------------------------------------------------

    def source_of(self, token_ids: Tokens, salt: str, match: Match) -> StateSource | None:
        """Return the stored state from which a prompt shall resume.

        The result is None if the store has no deeper state than the cache, or if computing is faster.
        """
        base = match.kv_depth // self._page_size * self._page_size
        stored = self.store.lookup(token_ids[:-1], salt, base=base, above=match.resumable)
        if stored is None:
            return None
        kind = "disk" if stored.disk_bytes else "memory"
        work = prefill_work(match.resumable, stored.depth, self._speed.ratio)
        if not self._bandwidth.pays(kind, stored.total_bytes, work, self._speed.tokens_per_second):
            return None
        prefix = token_ids[: stored.depth]

        def read(
            reception: Reception, buffers: Buffers, deadline: float, cancelled: threading.Event
        ) -> ReadResult:
            if cancelled.is_set():
                return ReadResult("cancelled")
            exact = self.store.lookup(prefix, salt, base=reception.base, above=len(prefix) - 1)
            if exact is None:
                return ReadResult("gone")
            outcome = self.store.read(exact, buffers[:1], buffers[1:])
            return ReadResult("valid" if outcome is ReadOutcome.VALID else outcome.value)

        return StateSource(
            kind, "restored", stored.depth, read, size=stored.total_bytes, origin="tier", place=kind
        )
