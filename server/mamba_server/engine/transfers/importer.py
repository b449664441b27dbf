"""`Importer`: states that are fetched from elsewhere, and the requests that wait for them.

A request waits until its state is in the radix tree, or until it is certain that the state will not arrive;
it is then queued like any other request. Threads only write the bytes that they receive; the loop does
everything else, between two steps. Memory to which a thread may still write is not reused before that thread
has ended.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from mamba_server.cache import ManagedStateCache, Origin, Provenance, Reception, Tokens
from mamba_server.engine.sequences.sequence import Sequence
from mamba_server.engine.transfers.bandwidth import Bandwidth
from mamba_server.engine.transfers.bundle_memory import Buffers, BundleMemory, LandingBundle
from mamba_server.engine.transfers.transfer_counts import TransferCounts
from mamba_server.wire import Arrival
from mamba_transfer.bundle import bundle_bytes
from mamba_transfer.outcome import PendingWriter

MOST_RECEPTIONS = 8
"""Maximum number of states that are received at the same time. Further requests wait."""


RENEWALS = 4
"""Number of messages in each lease by which a request that waits for a reception keeps the source's state
alive."""


@dataclass(frozen=True, slots=True)
class ReadResult:
    """How a read of a state ended: `valid`, or why the bytes must not be used."""

    outcome: str
    detail: str = ""
    """Cause in words, for the log."""
    writer: PendingWriter | None = None
    """Writer that may still write to the buffers; None = nothing writes to them any more."""


@dataclass(frozen=True, slots=True)
class StateSource:
    """Source from which a state is read: another engine, a tier, or a file."""

    kind: str
    """`peer` (another engine), `disk`, `memory` (of the host) or `file` (a saved session)."""
    direction: str
    """Direction in the metrics: `in` from another engine or a file, `restored` from a tier."""
    depth: int
    read: Callable[[Reception, Buffers, float, threading.Event], ReadResult]
    """Fills the buffers, in a thread, until it is done, the deadline passes, or the event is set."""
    peer: str = ""
    origin: Origin = "peer"
    """Kind of the source in the lineage of the checkpoint."""
    place: str = ""
    """Engine or tier by which the lineage of the checkpoint names the source."""
    size: int = 0
    """Expected bytes, from which imports that wait behind this one estimate their time; 0 = unknown."""
    unread: Callable[[], None] = lambda: None
    """Called by the loop if nothing will be read."""
    waits: Callable[[], None] = lambda: None
    """Called by the loop, some times in a lease, while nothing is read yet."""


@dataclass(slots=True, eq=False)
class _Import:
    """A state that is being fetched, with the sequences that wait for it, if any do."""

    token_ids: Tokens
    """Token ids of the prompt. The source has the state of the first of them."""
    salt: str
    source: StateSource
    began: float
    """Time at which the fetch was asked for, in seconds of the engine's clock."""
    deadline: float
    """Time at which it is given up."""
    size: int
    """Bytes that travel; the expected ones before the memory is taken."""
    reading_since: float = 0.0
    """Time at which its thread began to read; 0 = it has not."""
    renewed: float = 0.0
    """Time at which the source was last told that the state is still wanted."""
    group: list[Sequence] = field(default_factory=list)
    """Sequences that wait for the state; empty if no request does."""
    ended: Callable[[str], None] = lambda _: None
    """Called by the loop with the outcome."""
    reception: Reception | None = None
    landing: LandingBundle | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)
    given_up: bool = False
    """Whether no sequence waits for the state any more."""


class Importer:
    """The states that one engine fetches from elsewhere, and the requests that wait for them.

    `wake` makes an idle loop look for work; any thread may call it.
    """

    def __init__(
        self,
        cache: ManagedStateCache,
        memory: BundleMemory,
        counts: TransferCounts,
        *,
        lease_seconds: float,
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache, self._memory, self._counts = cache, memory, counts
        self._lease_seconds, self._wake, self._clock = lease_seconds, wake, clock
        self.bandwidth = Bandwidth()
        self._waiting: deque[_Import] = deque()
        """Imports that wait until fewer than `MOST_RECEPTIONS` are being received."""
        self._reading: dict[int, _Import] = {}
        """Imports that a thread is reading, by the number of their reception."""
        self._finished: deque[tuple[_Import, ReadResult]] = deque()
        self._pending_writers: list[tuple[Reception, PendingWriter]] = []
        self._threads = ThreadPoolExecutor(MOST_RECEPTIONS, thread_name_prefix="state-import")

    @property
    def busy(self) -> bool:
        """Whether a state is being fetched, including one for which no request waits any more."""
        return bool(self._waiting or self._reading or self._pending_writers)

    @property
    def places(self) -> int:
        """Number of further states whose reception could begin now, by the limit `MOST_RECEPTIONS`."""
        return max(0, MOST_RECEPTIONS - len(self._reading) - len(self._waiting))

    def now(self) -> float:
        """Return the time, in seconds, by the clock of the deadlines."""
        return self._clock()

    def expect(self, group: list[Sequence], source: StateSource) -> None:
        """Fetch the state of a group's prompt; the group waits for it."""
        now, sequence = self._clock(), group[0]
        token_ids, deadline = sequence.known_token_ids(), now + self._lease_seconds
        self._await(_Import(token_ids, sequence.salt, source, now, deadline, source.size, group=group))

    def bring(
        self,
        token_ids: Tokens,
        salt: str,
        source: StateSource,
        *,
        deadline: float,
        ended: Callable[[str], None],
    ) -> None:
        """Bring in a state for which no request waits; `ended` gets the outcome, from the loop.

        `deadline` is a time of the engine's clock in seconds.
        """
        self._await(_Import(token_ids, salt, source, self._clock(), deadline, source.size, ended=ended))

    def _await(self, awaited: _Import) -> None:
        self.bandwidth.waiting_bytes += awaited.size
        self._waiting.append(awaited)

    def cancel(self, request_id: str) -> None:
        """Stop fetching the state for a request that has ended."""
        for awaited in [*self._waiting, *self._reading.values()]:
            is_its_own = any(sequence.request_id == request_id for sequence in awaited.group[:1])
            if is_its_own and not awaited.given_up:
                self._give_up(awaited, "cancelled")

    def poll(self, step: int) -> list[list[Sequence]]:
        """Install states that have arrived, start waiting imports, and return the groups that may run."""
        if not self.busy:
            return []
        ready = []
        while self._finished:
            awaited, result = self._finished.popleft()
            if self._finish(awaited, result, step):
                ready.append(awaited.group)
        self._pending_writers = [
            (reception, writer) for reception, writer in self._pending_writers
            if not self._ends(reception, writer)
        ]  # fmt: skip
        now = self._clock()
        for awaited in [*self._waiting, *self._reading.values()]:
            if now >= awaited.deadline and not awaited.given_up:
                self._give_up(awaited, "timeout")
                ready.append(awaited.group)
        while self._waiting and len(self._reading) < MOST_RECEPTIONS:
            awaited = self._waiting.popleft()
            if not self._start(awaited, step):
                ready.append(awaited.group)
        for awaited in self._waiting:
            if now - awaited.renewed >= self._lease_seconds / RENEWALS:
                awaited.renewed = now
                awaited.source.waits()
        return ready

    def close(self) -> None:
        """Cancel all reads, and wait until their threads have ended."""
        for awaited in [*self._waiting, *self._reading.values()]:
            awaited.cancelled.set()
        self._threads.shutdown(cancel_futures=True)

    # --- life of an import ---------------------------------------------------------------------------

    def _start(self, awaited: _Import, step: int) -> bool:
        """Reserve memory and begin to read the state; return False if the group need not wait for it."""
        depth = awaited.source.depth
        reception = self._cache.receive(awaited.token_ids[:depth], awaited.salt)
        if reception is None:
            # Only longer prompts can resume from a checkpoint at the very end of this prompt.
            longer = np.append(awaited.token_ids[:depth], awaited.token_ids[:1])
            match = self._cache.match(longer, awaited.salt, step)
            self.bandwidth.waiting_bytes -= awaited.size
            self._record(awaited, "cached" if match.resumable >= depth else "no_memory", 0)
            awaited.source.unread()
            return False
        self._counts.changes += 1
        awaited.reception = reception
        awaited.landing = self._memory.landing(reception.slot, reception.pages)
        size = bundle_bytes(self._memory.layout, len(reception.pages))
        self.bandwidth.waiting_bytes += size - awaited.size
        awaited.size, awaited.reading_since = size, self._clock()
        self._reading[reception.number] = awaited
        self._threads.submit(self._read, awaited, reception, awaited.landing.buffers)
        return True

    def _read(self, awaited: _Import, reception: Reception, buffers: Buffers) -> None:
        """Read the state into the buffers. Runs in a thread."""
        try:
            result = awaited.source.read(reception, buffers, awaited.deadline, awaited.cancelled)
        except Exception as error:
            result = ReadResult("failed", f"{type(error).__name__}: {error}")
        self._finished.append((awaited, result))
        self._wake()

    def _finish(self, awaited: _Import, result: ReadResult, step: int) -> bool:
        """Install the state, or free its memory; return whether a group waited for it."""
        reception, landing = awaited.reception, awaited.landing
        assert reception is not None
        assert landing is not None
        self._counts.changes += 1
        del self._reading[reception.number]
        self.bandwidth.waiting_bytes -= awaited.size
        if awaited.given_up:
            if result.writer is None:
                self._cache.writer_ended(reception)
            else:
                self._pending_writers.append((reception, result.writer))
            return False
        outcome = result.outcome
        if outcome == "valid":
            self._cache.confirm(reception)
            landing.land()
            request_id = awaited.group[0].request_id if awaited.group else ""
            source = Provenance(awaited.source.origin, request_id, awaited.source.place)
            if not self._cache.install(reception, step, source):
                outcome = "duplicate"
            self.bandwidth.observe(awaited.source.kind, awaited.size, self._clock() - awaited.reading_since)
        else:
            self._cache.abandon(reception, writer_ended=result.writer is None)
            if result.writer is not None:
                self._pending_writers.append((reception, result.writer))
        self._record(awaited, outcome, awaited.size if outcome == "valid" else 0, result.detail)
        return True

    def _give_up(self, awaited: _Import, outcome: str) -> None:
        """Stop waiting for a state; its memory is freed once the thread that writes it has ended."""
        awaited.given_up = True
        awaited.cancelled.set()
        if awaited.reception is None:
            self._waiting.remove(awaited)
            self.bandwidth.waiting_bytes -= awaited.size
            awaited.source.unread()
        else:
            self._counts.changes += 1
            self._cache.abandon(awaited.reception, writer_ended=False)
        self._record(awaited, outcome, 0)

    def _ends(self, reception: Reception, writer: PendingWriter) -> bool:
        """Free the memory of the reception if its writer has ended; return whether it has."""
        ended = writer.ended()
        if ended:
            self._counts.changes += 1
            self._cache.writer_ended(reception)
        return ended

    def _record(self, awaited: _Import, outcome: str, size: int, detail: str = "") -> None:
        now, source = self._clock(), awaited.source
        peer = f"{source.peer} ({detail})" if detail else source.peer
        self._counts.record(
            source.direction, outcome, size, now - awaited.began, depth=source.depth, peer=peer
        )
        for sequence in awaited.group:
            sequence.transfer_failed = outcome != "valid"
            if outcome == "corrupt":
                sequence.lost_cause = "corrupt"
            if sequence.timeline is not None and sequence.index == 0:
                sequence.timeline.arrival(
                    Arrival(awaited.began, now, source.kind, outcome, source.depth, awaited.size)
                )
        awaited.ended(outcome)
