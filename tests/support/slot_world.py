"""Two sequences, three slots, a few steps: the smallest world in which slots change hands in every way.

The state cache is the real one; the device keeps depth-coded states and writes when a step completes, not
when it is launched. `SlotWorld.actions` are all things that may happen next; an explorer tries every order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import numpy as np

from cache_bench import CacheBench, flush_and_sweep, ids
from depth_coded import POISON, ZERO, State, after
from mamba_server.cache.sequence_allocation import SequenceAllocation
from mamba_server.cache.slot_state import SlotState
from prefix_of import prefix_of

PROMPT, SLOTS = 2, 3
Action = tuple[str, int]


@dataclass
class Entry:
    """Part of a launched step that belongs to one sequence."""

    name: int
    allocation: SequenceAllocation
    start: int
    stop: int
    slot_in: int
    tracks: list[tuple[int, int]]


@dataclass
class Flight:
    step: int
    entries: list[Entry]
    done: bool = False


@dataclass
class Actor:
    """One sequence: equal prompts, different continuations."""

    text: np.ndarray
    known: int = PROMPT
    allocation: SequenceAllocation | None = None
    over: bool = False
    preempted: bool = False


@dataclass
class SlotWorld:
    """One state of the exploration."""

    bench: CacheBench
    actors: list[Actor]
    steps: int
    states: list[State] = field(default_factory=lambda: [POISON] * (SLOTS + 1))
    flights: list[Flight] = field(default_factory=list)
    moves: set[tuple[SlotState, SlotState]] = field(default_factory=set)

    @classmethod
    def make(cls, strategy: str, steps: int, actors: int = 2) -> Self:
        bench = CacheBench.make(
            strategy=strategy, slabs=SLOTS + 1, per_slab=0, page_size=1, interval=1, cap=2
        )
        texts = [ids(1, 2, range(first, first + 9)) for first in (10, 20)]
        world = cls(bench, [Actor(text) for text in texts[:actors]], steps)
        move, arena = bench.arena.move, bench.arena

        def watched(slot: int, state: SlotState, fence: int = 0) -> None:
            old = arena.slot_state(slot)
            move(slot, state, fence)
            world.moves.add((old, state))

        arena.move = watched
        return world

    # --- what may happen -----------------------------------------------------------------------------

    def actions(self) -> list[Action]:
        """Return every event that can come next."""
        out: list[Action] = []
        if len(self.flights) < 2 and self.bench.step < self.steps:
            subsets = range(1, 1 << len(self.actors))
            out += [("launch", subset) for subset in subsets if self._may_launch(subset)]
        if any(not flight.done for flight in self.flights):
            out.append(("complete", 0))
        if self.flights and self.flights[0].done:
            out.append(("commit", 0))
        elif self.flights:
            out.append(("fail", 0))
        for name, actor in enumerate(self.actors):
            if actor.allocation is not None:
                out.append(("end", name))
                if not actor.preempted:
                    out.append(("preempt", name))
        return out

    def _may_launch(self, subset: int) -> bool:
        for name, actor in enumerate(self.actors):
            if subset >> name & 1:
                flying = any(entry.name == name for flight in self.flights for entry in flight.entries)
                if actor.over or (actor.allocation is None and flying):
                    return False
        return True

    def do(self, action: Action) -> None:
        """Let it happen, then check everything."""
        self.repeat(action)
        self.check()

    def repeat(self, action: Action) -> None:
        """Let it happen; for what was done and checked before."""
        kind, argument = action
        match kind:
            case "launch":
                self._launch(argument)
            case "complete":
                self._run(next(flight for flight in self.flights if not flight.done))
            case "commit":
                self._commit(self.flights.pop(0))
            case "fail":
                self._fail(self.flights.pop(0))
            case "end":
                self._leave(self.actors[argument], self.actors[argument].known)
                self.actors[argument].over = True
            case "preempt":
                self._leave(self.actors[argument], self.actors[argument].known)
                self.actors[argument].preempted = True

    # --- how it happens ------------------------------------------------------------------------------

    def _launch(self, subset: int) -> None:
        bench, cache = self.bench, self.bench.cache
        step, entries = bench.step + 1, []
        for name, actor in enumerate(self.actors):
            if not subset >> name & 1:
                continue
            if actor.allocation is None:
                tokens = actor.text[: actor.known]
                match = cache.match(tokens, "", step)
                actor.allocation = cache.admit(tokens, "", match, len(tokens), 0)
                if actor.allocation is None:
                    continue
                allocation, stop = actor.allocation, len(tokens)
                tracks = [(each.depth, each.slot) for each in cache.plan_prefill(allocation, stop, step)]
            else:
                allocation, stop = actor.allocation, actor.allocation.depth + 1
                assert cache.extend(allocation, stop)
                slot = cache.take_decode_slot(allocation, step) if stop % cache.track_interval == 0 else 0
                tracks = [(stop, slot)] if slot else []
            entries.append(Entry(name, allocation, allocation.depth, stop, allocation.slot_in, tracks))
            cache.launch(allocation.row, stop, step)
        if entries:
            bench.step = step
            self.flights.append(Flight(step, entries))
            slots = {slot for each in entries for slot in (each.slot_in, each.allocation.live)}
            slots |= {slot for each in entries for _, slot in each.tracks}
            bench.arena.in_flight[step] = slots - {-1}, np.empty(0, np.int32)

    def _run(self, flight: Flight) -> None:
        for each in flight.entries:
            text = self.actors[each.name].text
            state = ZERO if each.slot_in < 0 else self.states[each.slot_in]
            assert state == after(ZERO, text[: each.start].tobytes()), "read of a wrong state"
            for depth, slot in each.tracks:
                self.states[slot] = after(state, text[each.start : depth].tobytes())
            self.states[each.allocation.live] = after(state, text[each.start : each.stop].tobytes())
        flight.done = True

    def _commit(self, flight: Flight) -> None:
        self.bench.cache.advance(flight.step)
        for each in flight.entries:
            actor = self.actors[each.name]
            if not actor.over:
                actor.known = max(actor.known, each.stop + 1)
            if actor.allocation is each.allocation:
                self.bench.cache.commit(each.allocation, actor.text[: actor.known], flight.step)
        self.bench.cache.release_retired()

    def _fail(self, flight: Flight) -> None:
        failed = {each.name for each in flight.entries}
        for name in failed:
            actor = self.actors[name]
            if actor.allocation is not None:
                self._leave(actor, 0)
            actor.over = True
        self.bench.cache.advance(flight.step, failed=True)
        self.bench.cache.release_retired()
        # What is behind it goes on with rubbish for the failed sequences; they are over.
        for later in self.flights:
            later.entries = [each for each in later.entries if each.name not in failed]

    def _leave(self, actor: Actor, keep: int) -> None:
        allocation, actor.allocation = actor.allocation, None
        assert allocation is not None
        if keep == 0:
            self.bench.cache.retire(allocation, lambda: actor.text[:0])
        else:
            self.bench.cache.retire(allocation, lambda: actor.text[: actor.known])

    # --- what must hold ------------------------------------------------------------------------------

    def check(self) -> None:
        """Check one owner for each slot, the right state for each key, and one slot for lazy ones."""
        self.bench.check()
        cache = self.bench.cache
        for node in cache.tree.walk():
            if node.slot:
                key = prefix_of(node)
                assert self.states[node.slot] == after(ZERO, key.tobytes()), "checkpoint of another depth"
        for actor in self.actors:
            if actor.allocation is not None:
                for each in actor.allocation.ready:
                    assert self.states[each.slot] == after(ZERO, actor.text[: each.depth].tobytes())
                assert actor.allocation.reserved >= cache.strategy.tracking_slots

    def settle_down(self) -> None:
        """End everyone and drain: every slot is free again."""
        for name, actor in enumerate(self.actors):
            if actor.allocation is not None:
                self.do(("end", name))
        while self.flights:
            self.do(("complete", 0) if not self.flights[0].done else ("commit", 0))
        flush_and_sweep(self.bench.cache)
        assert self.bench.arena.free_slots == SLOTS, "a slot leaked"

    def key(self) -> object:
        """Return the key of this world: worlds with equal keys have equal futures."""
        cache = self.bench.cache
        nodes = sorted(
            (prefix_of(n).tobytes(), n.slot, n.produced_step, n.kv_lock, n.state_lock, n.priority)
            for n in cache.tree.walk()
        )
        return (
            self.bench.step, cache.arena.completed, tuple(self.states), tuple(nodes), cache.capacity.retiring,
            tuple(cache.arena._slot_state), tuple(cache.arena._slot_fence), tuple(cache.arena._free_slabs),
            tuple((a.known, a.over, a.preempted, _held(a.allocation)) for a in self.actors),
            tuple(
                (f.step, f.done, tuple((e.name, e.start, e.stop, e.slot_in, *e.tracks) for e in f.entries))
                for f in self.flights
            ),
        )  # fmt: skip


def _held(allocation: SequenceAllocation | None) -> object:
    if allocation is None:
        return None
    return (
        allocation.live, allocation.depth, allocation.slot_in, allocation.last_step, tuple(allocation.spare),
        tuple((each.depth, each.slot) for each in allocation.ready),
        tuple((each.checkpoint.depth, each.checkpoint.slot, each.step) for each in allocation.pending),
    )  # fmt: skip
