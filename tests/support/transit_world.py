"""One cache with sequences, receptions, exports and evictions in any order: one random schedule.

The state cache is the real one. The device keeps depth-coded states and pages and writes when a step
completes, not when it is launched; a simulated network lands bytes in any order, also late. After every event
the ledger is checked, and every checkpoint and page of the tree against its own key.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import numpy as np

from cache_bench import CacheBench, flush_and_sweep
from depth_coded import POISON, ZERO, State, after
from mamba_planner.strategy import reservation
from mamba_server.cache.node import Node, Pin
from mamba_server.cache.protocol import Reception
from mamba_server.cache.sequence_allocation import SequenceAllocation
from mamba_server.cache.slot_state import SlotState
from simulated_network import SimulatedNetwork

STRATEGIES = ("NoBuffer", "ExtraBufferLazy", "ExtraBuffer")


@dataclass(eq=False)
class Running:
    """Running sequence: the first `known` tokens of `text` are known."""

    text: np.ndarray
    known: int
    salt: str
    allocation: SequenceAllocation | None


@dataclass(eq=False)
class Entry:
    """Part of a launched step that belongs to one sequence."""

    sequence: Running
    allocation: SequenceAllocation
    start: int
    stop: int
    slot_in: int
    tracks: list[tuple[int, int]]
    pages: np.ndarray


@dataclass(eq=False)
class Flight:
    """Launched step: a batch of sequences, or the copy of a reception."""

    step: int
    entries: list[Entry]
    copies: Reception | None = None
    done: bool = False


class TransitWorld:
    """World of one schedule; everything follows from `seed`."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        self.page_size = rng.choice([1, 2, 4])
        per_slab = rng.choice([0, 1, 2, 3])
        slabs = rng.randint(5, 9) if per_slab != 1 else rng.randint(8, 16)
        self.overlap = rng.random() < 0.7
        self.bench = CacheBench.make(
            strategy=rng.choice(STRATEGIES), overlap=self.overlap, slabs=slabs, per_slab=per_slab,
            page_size=self.page_size, interval=self.page_size * rng.choice([1, 2]), cap=rng.choice([1, 2, 4]),
            policy=rng.choice(["LRU", "RecomputeCost"]),
        )  # fmt: skip
        self.cache, self.arena = self.bench.cache, self.bench.arena
        refusals = rng.choice([0.0, 0.0, 0.2])
        if refusals:
            self.arena.refuse = lambda _: rng.random() < refusals
        self.states: list[State] = [POISON] * slabs
        self.page_ids = np.full((slabs * max(1, per_slab), self.page_size), -1, np.int32)
        self.network = SimulatedNetwork(self.cache, self, rng, staged=rng.random() < 0.4)
        self.sequences: list[Running] = []
        self.flights: list[Flight] = []
        self.seen: Counter[str] = Counter()
        stem = [rng.randrange(1, 90) for _ in range(rng.randint(2, 5) * self.page_size)]
        shared = rng.randint(1, len(stem))
        self.texts = [np.array([*stem, *extra], np.int32) for extra in ([], [91] * self.page_size)]
        self.texts.append(
            np.array([*stem[:shared], *([92] * (len(stem) - shared + self.page_size))], np.int32)
        )
        move = self.arena.move

        def watched(slot: int, state: SlotState, fence: int = 0) -> None:
            old = self.arena.slot_state(slot)
            move(slot, state, fence)
            self.seen[f"{old.name} -> {state.name}"] += 1

        self.arena.move = watched  # type: ignore[method-assign]
        self.pins: list[Pin] = []
        # Own random numbers, so that schedules with and without pins are the same otherwise.
        self.pin_rng = random.Random(seed + 1)
        self._watch_evictions()

    def _watch_evictions(self) -> None:
        """Refuse that a pinned checkpoint is evicted while another one could be."""
        reclaimer, tree = self.cache.reclaimer, self.cache.tree
        evict_state = reclaimer.evict_state

        def watched(node: Node, *, report: bool = True) -> None:
            if report and node.pin is not None:
                others = [each for each in tree.walk() if each.slot and not each.state_lock]
                assert all(each.pin is not None for each in others), "a pin gave way before other checkpoints"
                assert node.pin.number == min(each.pin.number for each in others if each.pin is not None)
                self.seen["pin given up"] += 1
            evict_state(node, report=report)

        reclaimer.evict_state = watched  # type: ignore[method-assign]

    def _pin(self) -> None:
        """Pin a prefix, or end a pin."""
        if self.pins and self.pin_rng.random() < 0.5:
            pin = self.pins.pop(self.pin_rng.randrange(len(self.pins)))
            self.seen["unpinned" if pin.node is not None else "unpinned late"] += 1
            self.cache.unpin(pin)
            return
        text = self.pin_rng.choice(self.texts)
        pin = self.cache.pin(text, "", self.bench.step + 1, depth=self.pin_rng.randint(1, len(text)))
        self.seen["pinned" if pin is not None else "not pinned"] += 1
        if pin is not None:
            assert pin.node is not None
            self.seen["pinned again"] += pin.holders > 1
            self.pins.append(pin)

    def run(self, events: int) -> Counter[str]:
        """Let `events` events happen, drain, and check; return how often each kind of event happened."""
        for _ in range(events):
            self.act()
            self.check()
        self.close()
        self.seen["landed"] += self.network.landed
        self.seen["landed late"] += self.network.late
        self.seen["reported evictions"] += self.network.evicted
        self.seen["installed before its launch"] += self.network.pending
        self.seen["installed again"] += self.network.refused
        self.seen["base locked"] += self.network.on_base
        return self.seen

    # --- events --------------------------------------------------------------------------------------

    def _text(self) -> tuple[np.ndarray, str]:
        """Return one of a few texts that share prefixes, and a salt."""
        text = self.rng.choice(self.texts)
        keep = self.rng.choice([self.rng.randint(1, len(text)), len(text), len(text)])
        return text[:keep], self.rng.choice(["", "", "", "", "", "", "", "x"])

    def act(self) -> None:
        """Let one random event happen."""
        if self.pin_rng.random() < 0.12:
            self._pin()
        kind = self.rng.random()
        if kind < 0.18:
            self._launch()
        elif kind < 0.42:
            self._progress()
        elif kind < 0.48:
            self._leave()
        elif kind < 0.58:
            self._receive()
        elif kind < 0.65:
            self._export()
        elif kind < 0.97:
            if self.network.staged and self.network.confirmed and self.rng.random() < 0.3:
                self._copy()
            else:
                self.network.act(self.bench.step + 1)
        else:
            self._administer()

    def _receive(self) -> None:
        text, salt = self._text()
        text = text[: len(text) // self.page_size * self.page_size]
        if len(text):
            writer = self.network.receive(text, salt, correct=self.rng.random() < 0.9)
            self.seen["received" if writer else "not received"] += 1

    def _export(self) -> None:
        text, salt = self._text()
        most = self.rng.choice([None, None, len(text) // 2])
        reader = self.network.export(text, salt, self.bench.step + 1, most)
        self.seen["exported" if reader else "not exported"] += 1

    def _administer(self) -> None:
        """Flush, or change a setting."""
        choice = self.rng.randrange(5)
        if choice == 0:
            self.cache.flush()
            read = [allocation.match_node for allocation in self.cache.allocations.values()]
            assert all(pin.node is None or pin.node in read for pin in self.pins), "a flush kept a pin"
            self.seen["flushed"] += 1
        elif choice == 1 and self.cache.sweeping:
            self.cache.sweep()
        elif choice == 2:
            name = self.rng.choice(STRATEGIES)
            self.cache.change_strategy(reservation(name, overlap=self.overlap))
        elif choice == 3:
            self.cache.change_eviction(self.rng.choice(["LRU", "RecomputeCost"]))
        else:
            self.cache.cap = self.rng.choice([1, 2, 4])

    # --- sequences -----------------------------------------------------------------------------------

    def _launch(self) -> None:
        """Launch a step: some running sequences decode, or a new one is computed."""
        if len(self.flights) > int(self.overlap):
            return
        step, entries = self.bench.step + 1, []
        for sequence in self.sequences:
            entry = self._decode(sequence, step) if self.rng.random() < 0.6 else None
            entries += [entry] if entry else []
        if len(self.sequences) < 3 and (not entries or self.rng.random() < 0.5):
            entry = self._prefill(step)
            entries += [entry] if entry else []
        if not entries:
            return
        self._take_off(Flight(step, entries))

    def _take_off(self, flight: Flight) -> None:
        """Record what a launched step names."""
        self.bench.step = flight.step
        self.flights.append(flight)
        slots = {slot for each in flight.entries for slot in (each.slot_in, each.allocation.live)}
        slots |= {slot for each in flight.entries for _, slot in each.tracks}
        pages = [each.pages for each in flight.entries]
        if flight.copies is not None:
            slots.add(flight.copies.slot)
            pages.append(flight.copies.pages)
        self.arena.in_flight[flight.step] = slots - {-1, 0}, np.concatenate(pages)

    def _prefill(self, step: int) -> Entry | None:
        text, salt = self._text()
        match = self.cache.match(text, salt, step)
        allocation = self.cache.admit(text, salt, match, len(text), self.rng.choice([0, len(text) // 2]))
        if allocation is None:
            return None
        self.seen["resumed" if match.resumable else "computed"] += 1
        more = np.array([self.rng.randrange(1, 90) for _ in range(12)], np.int32)
        sequence = Running(np.concatenate([text, more]), len(text), salt, allocation)
        self.sequences.append(sequence)
        return self._entry(sequence, allocation, len(text), step)

    def _decode(self, sequence: Running, step: int) -> Entry | None:
        allocation = sequence.allocation
        assert allocation is not None
        stop = allocation.depth + 1
        if stop > len(sequence.text) - 1 or not self.cache.extend(allocation, stop):
            return None
        return self._entry(sequence, allocation, stop, step)

    def _entry(self, sequence: Running, allocation: SequenceAllocation, stop: int, step: int) -> Entry:
        start = allocation.depth
        if allocation.last_step:
            slot = self.cache.plan_decode(allocation, stop - sequence.known + 1, step)
            tracks = [(stop, slot)] if slot else []
        else:
            tracks = [(each.depth, each.slot) for each in self.cache.plan_prefill(allocation, stop, step)]
        entry = Entry(sequence, allocation, start, stop, allocation.slot_in, tracks, allocation.pages.copy())
        self.cache.launch(allocation.row, stop, step)
        return entry

    def _copy(self) -> None:
        """Launch the copy of a confirmed reception, and install it."""
        writer = self.rng.choice(self.network.confirmed)
        if len(self.flights) > int(self.overlap):
            return
        if not writer.correct:
            self.network.reject(writer)
            return
        step = self.bench.step + 1
        self._take_off(Flight(step, [], writer.reception))
        self.network.install(writer, step + 1)

    def _progress(self) -> None:
        """Complete a launched step, commit it, or let it fail."""
        waiting = next((flight for flight in self.flights if not flight.done), None)
        if self.flights and self.flights[0].done and self.rng.random() < 0.5:
            self._commit(self.flights.pop(0))
        elif (
            waiting is not None and waiting is self.flights[0] and waiting.entries and self.rng.random() < 0.1
        ):
            self._fail(self.flights.pop(0))
        elif waiting is not None:
            self._run(waiting)

    def _run(self, flight: Flight) -> None:
        if flight.copies is not None:
            self.network.copy(flight.copies)
        for each in flight.entries:
            text = each.sequence.text
            state = ZERO if each.slot_in < 0 else self.states[each.slot_in]
            assert state == after(ZERO, text[: each.start].tobytes()), "read of a wrong state"
            self._assert_pages(each.pages, text[: each.start])
            for depth, slot in each.tracks:
                self.states[slot] = after(state, text[each.start : depth].tobytes())
            self.states[each.allocation.live] = after(state, text[each.start : each.stop].tobytes())
            if self.arena.pages_per_slab:
                at = np.arange(each.start, each.stop)
                self.page_ids[each.pages[at // self.page_size], at % self.page_size] = text[at]
        flight.done = True

    def _assert_pages(self, pages: np.ndarray, text: np.ndarray) -> None:
        if self.arena.pages_per_slab and len(text):
            whole = self.page_ids[pages[: -(-len(text) // self.page_size)]].reshape(-1)[: len(text)]
            assert np.array_equal(whole, text), "read of a wrong page"

    def _commit(self, flight: Flight) -> None:
        self.cache.advance(flight.step)
        for each in flight.entries:
            sequence = each.sequence
            sequence.known = max(sequence.known, each.stop + 1)
            if sequence.allocation is each.allocation:
                self.cache.commit(each.allocation, sequence.text[: sequence.known], flight.step)
        self.cache.release_retired()

    def _fail(self, flight: Flight) -> None:
        """Let a step fail: its sequences end."""
        failed = {id(each.sequence) for each in flight.entries}
        for sequence in [each for each in self.sequences if id(each) in failed]:
            self._end(sequence, 0)
        self.cache.advance(flight.step, failed=True)
        self.cache.release_retired()
        for later in self.flights:
            later.entries = [each for each in later.entries if id(each.sequence) not in failed]
        self.seen["failed"] += 1

    def _leave(self) -> None:
        """End a sequence: all of its tokens count, or some, or none because they are not finite."""
        if not self.sequences:
            return
        sequence, chance = self.rng.choice(self.sequences), self.rng.random()
        if chance < 0.1:
            assert sequence.allocation is not None
            self.cache.discard_results(sequence.allocation)
            self.seen["discarded"] += 1
        keep = sequence.known if chance < 0.8 else self.rng.randint(0, sequence.known)
        self._end(sequence, keep)

    def _end(self, sequence: Running, keep: int) -> None:
        self.sequences.remove(sequence)
        allocation, sequence.allocation = sequence.allocation, None
        assert allocation is not None
        self.cache.retire(allocation, lambda: sequence.text[: min(keep, sequence.known)])

    # --- what must hold ------------------------------------------------------------------------------

    def check(self) -> None:
        """Check the ledger, and every checkpoint and page of the tree whose writes are complete."""
        self.bench.check()
        unwritten = self._unwritten()
        for root in self.cache.tree.roots.values():
            stack = [(root, ZERO)]
            while stack:
                node, above = stack.pop()
                tokens = node.token_ids.tobytes()
                state = after(above, tokens)
                if node.slot and node.slot not in unwritten:
                    assert self.states[node.slot] == state, ("checkpoint", node.depth)
                if self.arena.pages_per_slab and len(node.pages):
                    written = np.array([page not in unwritten for page in (-node.pages).tolist()])
                    assert np.array_equal(
                        self.page_ids[node.pages][written],
                        node.token_ids.reshape(-1, self.page_size)[written],
                    ), "pages of a node"
                stack.extend((child, state) for child in node.children.values())
        for reader in self.network.readers:
            self.network.read(reader)

    def _unwritten(self) -> set[int]:
        """Return the slots, and the pages as negative numbers, that a launched copy has still to write."""
        out: set[int] = set()
        for flight in self.flights:
            if flight.copies is not None and not flight.done:
                out |= {flight.copies.slot, *(-flight.copies.pages).tolist()}
        return out

    def close(self) -> None:
        """End everything and drain: every slot and page is free again."""
        self.arena.refuse = lambda _: False
        self.network.close()
        self.check()
        for sequence in list(self.sequences):
            self._end(sequence, sequence.known)
        while self.flights:
            if not self.flights[0].done:
                self._run(self.flights[0])
            self._commit(self.flights.pop(0))
            self.check()
        flush_and_sweep(self.cache)
        self.check()
        assert not self.cache.tree.roots
        assert self.arena.free_slots == self.arena.slabs - 1, "memory leaked"
        assert not self.cache.receptions
        assert not self.cache.exports
        assert not self.cache.installs
