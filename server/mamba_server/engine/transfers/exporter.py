"""`Exporter`: checkpoints that this engine keeps in its cache for other engines to read.

Only the loop may call the cache. So the threads of the transfer server post questions, which the loop answers
between two steps. An export that no reader opens ends with its lease. An open export ends only when the
server has read its memory for the last time, even after the end of the lease.
"""

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from mamba_server.cache import EvictedCheckpoint, Export, ManagedStateCache, Tokens
from mamba_server.engine.transfers.bundle_memory import BundleMemory, OutgoingBundle
from mamba_server.engine.transfers.transfer_counts import TransferCounts
from mamba_server.wire import HandOver
from mamba_transfer.bundle import bundle_bytes
from mamba_transfer.exports import OpenExport
from mamba_transfer.leases import Lease, LeaseTable
from mamba_transfer.messages import HotPrefix, Wanted

ANSWER_SECONDS = 30.0
"""Longest time, in seconds, that a thread of the server waits for the loop, which may be busy with a long
step."""
NAME_BYTES = 8
"""Number of random bytes in the name of an export, which must be hard to guess."""


@dataclass(slots=True)
class _Held:
    """An export whose checkpoint is locked in the cache until it ends."""

    export: Export
    began: float
    size: int = 0
    """Number of bytes to send; set once a reader has opened the export."""


@dataclass(slots=True, eq=False)
class _Question:
    """Request by which a thread of the transfer server asks the engine's loop to open an export.

    The thread waits for `done` and reads `answer`: None if the loop has no such checkpoint. `given_up` tells
    the loop that the thread no longer waits, so that the loop ends the export itself.
    """

    request: Wanted
    done: threading.Event = field(default_factory=threading.Event)
    guard: threading.Lock = field(default_factory=threading.Lock)
    given_up: bool = False
    answer: tuple[OpenExport, OutgoingBundle] | None = None


@dataclass(slots=True, eq=False)
class _HotQuestion:
    """Request by which a thread of the transfer server asks the loop for the `count` best prefixes."""

    count: int
    done: threading.Event = field(default_factory=threading.Event)
    answer: list[HotPrefix] = field(default_factory=list)


class Exporter:
    """Exports of one engine, as the `ExportSource` of its transfer server.

    `wake` makes an idle loop look for work; any thread may call it. An export that nobody opens is kept for
    `lease_seconds`.
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
        self._page_size = cache.capacity.page_size
        self._leases = LeaseTable(clock)
        self._held: dict[str, _Held] = {}
        self._questions: deque[_Question] = deque()
        self._hot_questions: deque[_HotQuestion] = deque()
        self._closed: deque[tuple[str, bool]] = deque()
        self._released: deque[str] = deque()

    def __len__(self) -> int:
        return len(self._held)

    # --- by the loop ---------------------------------------------------------------------------------

    def export(self, token_ids: Tokens, salt: str, step: int) -> HandOver:
        """Lock the deepest checkpoint of a prompt for `lease_seconds`; the depth is 0 if there is none."""
        export = self._cache.export(token_ids, salt, step)
        if export is None:
            return HandOver("", 0, 0.0)
        name = secrets.token_hex(NAME_BYTES)
        self._hold(name, export)
        self._leases.grant(name, self._lease_seconds)
        return HandOver(name, export.depth, self._lease_seconds)

    def poll(self, step: int) -> None:
        """Answer the threads' requests, and end exports that were read or have expired, between two steps."""
        while self._closed:
            name, delivered = self._closed.popleft()
            self._end(name, "valid" if delivered else "lost")
        while self._released:
            self._end(self._released.popleft(), "released")
        for name in self._leases.sweep():
            self._end(name, "expired")
        while self._hot_questions:
            hot = self._hot_questions.popleft()
            hot.answer = self.hot_prefixes(hot.count)
            hot.done.set()
        while self._questions:
            question = self._questions.popleft()
            answer = self._answer(question.request, step)
            with question.guard:
                question.answer = answer
                is_late = question.given_up
            question.done.set()
            if is_late and answer is not None:
                self._end(answer[0].lease.export, "lost")

    def hot_prefixes(self, count: int) -> list[HotPrefix]:
        """Return up to `count` prefixes that would be evicted last, the most valuable first."""
        return [self._hot(each) for each in self._cache.hottest(count)]

    def _hot(self, checkpoint: EvictedCheckpoint) -> HotPrefix:
        size = bundle_bytes(self._memory.layout, checkpoint.depth // self._page_size)
        return HotPrefix(checkpoint.salt, checkpoint.token_ids().astype("<i4").tobytes(), size)

    def _answer(self, request: Wanted, step: int) -> tuple[OpenExport, OutgoingBundle] | None:
        if request.base % self._page_size or request.base > request.depth:
            return None
        if request.export:
            held, lease = self._held.get(request.export), None
            if held is not None and held.export.depth == request.depth:
                lease = self._leases.take(request.export)
            if held is None or lease is None:
                return None
        else:
            token_ids = np.frombuffer(request.token_ids, "<i4").astype(np.int32)
            if len(token_ids) != request.depth or not request.depth:
                return None
            export = self._cache.export(token_ids, request.salt, step)
            if export is None:
                return None
            if export.depth != request.depth:
                self._cache.end_export(export)
                return None
            lease = Lease(secrets.token_hex(NAME_BYTES), self._lease_seconds, self._clock)
            held = self._hold(lease.export, export)
        pages = held.export.pages[request.base // self._page_size :]
        outgoing = self._memory.outgoing(held.export.slot, pages)
        held.size = bundle_bytes(self._memory.layout, len(pages))
        return OpenExport(held.export.depth, request.base, outgoing.buffers, lease), outgoing

    def _hold(self, name: str, export: Export) -> _Held:
        self._counts.changes += 1
        held = self._held[name] = _Held(export, self._clock())
        return held

    def _end(self, name: str, outcome: str) -> None:
        self._counts.changes += 1
        held = self._held.pop(name)
        self._cache.end_export(held.export)
        size = held.size if outcome == "valid" else 0
        self._counts.record("out", outcome, size, self._clock() - held.began, depth=held.export.depth)

    # --- by any thread -------------------------------------------------------------------------------

    def release(self, export: str) -> bool:
        """Let the next `poll` end an export that nobody has opened; return whether there was one."""
        released = self._leases.release(export)
        if released:
            self._released.append(export)
            self._wake()
        return released

    # --- by threads of the server --------------------------------------------------------------------

    def open(self, request: Wanted) -> OpenExport | None:
        """Return the requested checkpoint, locked; None if there is none.

        Waits until the loop answers, but at most `ANSWER_SECONDS`, and then until the bytes can be read.
        """
        question = _Question(request)
        self._questions.append(question)
        self._wake()
        if not question.done.wait(ANSWER_SECONDS):
            with question.guard:
                question.given_up = question.answer is None
        if question.answer is None:
            return None
        export, outgoing = question.answer
        outgoing.wait()
        return export

    def hottest(self, count: int) -> list[HotPrefix]:
        """Return the prefixes that eviction would take last, the most valuable first.

        Waits for the loop's answer for at most `ANSWER_SECONDS`; without one, the result is empty.
        """
        question = _HotQuestion(count)
        self._hot_questions.append(question)
        self._wake()
        question.done.wait(ANSWER_SECONDS)
        return question.answer

    def close(self, export: OpenExport, *, delivered: bool) -> None:
        """Let the loop unlock an export whose memory is not read any more.

        `delivered` says whether the reader has received all of it.
        """
        self._closed.append((export.lease.export, delivered))
        self._wake()

    def renew(self, export: str) -> bool:
        """Renew the lease of an export that no reader has opened. Return False if it has ended."""
        return self._leases.renew(export)
