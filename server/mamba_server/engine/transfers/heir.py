"""`Heir`: an engine takes over the most valuable states of a peer that is about to end.

The threads of the transfer server post questions; the loop answers between two steps. A state is fetched only
if that is expected to take less time than to compute it, and only into a part of the arena, where eviction
treats it like any other state.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from mamba_planner.arithmetic import prefill_work
from mamba_server.cache import ManagedStateCache
from mamba_server.engine.stepping.prefill_speed import PrefillSpeed
from mamba_server.engine.transfers.bandwidth import Bandwidth
from mamba_server.wire import Fetch
from mamba_transfer import MOST_HOT, Bequest, HotPrefix, StateLayout, bundle_bytes

INHERITED_SHARE = 0.25
"""Largest share of the arena that the states of one peer take."""
MOST_AT_ONCE = 4
"""States that are fetched at once: half of the receptions stay for requests."""
PLACES_SECONDS = 5.0
"""Longest time, in seconds, that a thread of the server waits for the loop to say how many states fit."""
Bring = Callable[[Fetch, HotPrefix, float, Callable[[str], None]], None]
"""Function that begins to fetch a state; gets source, prefix, deadline, and a function for the outcome."""


@dataclass(slots=True, eq=False)
class _Question:
    """Request by which a thread of the transfer server asks the loop how many states fit."""

    done: threading.Event = field(default_factory=threading.Event)
    places: int = 0


@dataclass(slots=True, eq=False)
class _Inheritance:
    """The states of one ending engine that this one fetches."""

    bequest: Bequest
    deadline: float
    waiting: deque[HotPrefix]
    places: int
    under_way: int = 0
    fetched: int = 0
    done: threading.Event = field(default_factory=threading.Event)

    def end(self, outcome: str) -> None:
        """Count a fetch that has ended. Called by the loop."""
        self.under_way -= 1
        self.fetched += outcome == "valid"


class Heir:
    """Heir of one engine: the `StateHeir` of its transfer server.

    Args:
        cache: the cache of the engine.
        layout: layout of its states.
        role: role of the engine; it takes states of engines of the same role.
        speed: measured speed of its prompts.
        bandwidth: measured bandwidth of earlier transfers.
        step: returns the number of the next step.
        wake: interrupts the wait of an idle loop; may be called by any thread.
        clock: clock of deadlines.
    """

    def __init__(
        self,
        cache: ManagedStateCache,
        layout: StateLayout,
        role: str,
        speed: PrefillSpeed,
        bandwidth: Bandwidth,
        *,
        step: Callable[[], int],
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache, self._layout, self._role = cache, layout, role
        self._speed, self._bandwidth = speed, bandwidth
        self._step, self._wake, self._clock = step, wake, clock
        self._questions: deque[_Question] = deque()
        self._arriving: deque[_Inheritance] = deque()
        self._current: list[_Inheritance] = []
        self.leaving = False
        """Whether this engine is about to end itself, so that it takes nothing."""

    # --- by threads of the server --------------------------------------------------------------------

    def places(self, role: str) -> int:
        """Return how many states of an ending engine of `role` there is room for.

        0 for another role, for an engine that ends itself, and if the loop does not answer within
        `PLACES_SECONDS`.
        """
        if role != self._role or self.leaving:
            return 0
        question = _Question()
        self._questions.append(question)
        self._wake()
        question.done.wait(PLACES_SECONDS)
        return question.places

    def inherit(self, bequest: Bequest) -> int:
        """Fetch the states that are worth the time, and return the number of states that were fetched."""
        deadline = self._clock() + bequest.seconds
        inheritance = _Inheritance(bequest, deadline, deque(bequest.prefixes), 0)
        self._arriving.append(inheritance)
        self._wake()
        inheritance.done.wait(bequest.seconds)
        return inheritance.fetched

    # --- by the loop ---------------------------------------------------------------------------------

    def poll(self, bring: Bring) -> None:
        """Answer the server's threads, and begin fetches. Called by the loop between two steps."""
        while self._questions:
            question = self._questions.popleft()
            question.places = min(self._room(), MOST_HOT)
            question.done.set()
        while self._arriving:
            arriving = self._arriving.popleft()
            arriving.places = self._room()
            self._current.append(arriving)
        for inheritance in self._current:
            self._proceed(inheritance, bring)
        if self._current:
            self._current = [each for each in self._current if not each.done.is_set()]

    def _room(self) -> int:
        capacity = self._cache.capacity
        room = capacity.free_slots + capacity.evictable_slots - 2 * capacity.slots_per_sequence
        return max(0, min(room, int(capacity.slabs * INHERITED_SHARE)))

    def _proceed(self, inheritance: _Inheritance, bring: Bring) -> None:
        if self._clock() >= inheritance.deadline:
            inheritance.waiting.clear()
        while inheritance.waiting and inheritance.under_way < MOST_AT_ONCE and inheritance.places > 0:
            prefix = inheritance.waiting.popleft()
            if not self.is_worth_fetching(prefix):
                continue
            inheritance.places -= 1
            inheritance.under_way += 1
            bequest = inheritance.bequest
            fetch = Fetch(bequest.address, bequest.incarnation, prefix.depth)
            bring(fetch, prefix, inheritance.deadline, inheritance.end)
        if not inheritance.under_way and (not inheritance.waiting or inheritance.places <= 0):
            inheritance.done.set()

    def is_worth_fetching(self, prefix: HotPrefix) -> bool:
        """Return whether the cache lacks the state, and fetching it takes less time than computing it."""
        tokens = np.frombuffer(prefix.token_ids, "<i4").astype(np.int32)
        depth, page_size = len(tokens), self._cache.capacity.page_size
        if not depth or depth % page_size:
            return False
        # A checkpoint at the very end of a prompt is resumed by longer prompts alone.
        match = self._cache.match(np.append(tokens, tokens[:1]), prefix.salt, self._step())
        if match.resumable >= depth:
            return False
        speed = self._speed.tokens_per_second
        if speed <= 0:
            return True
        pages = depth // page_size - min(match.kv_depth, depth) // page_size
        seconds = self._bandwidth.seconds("peer", bundle_bytes(self._layout, pages))
        return seconds < prefill_work(match.resumable, depth, self._speed.ratio) / speed
