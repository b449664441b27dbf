"""The scheduler: which sequences take part in the next step, and with how many tokens.

Pure: sequences and the state cache with its batch in, a `Schedule` out; no clock, no device, no I/O. Decodes
come first, then prefill pieces under the token budget, then admission. A shortage makes a sequence wait or
preempts the one that came last; nothing raises.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from mamba_server.cache.chunk_plan import aligned_piece
from mamba_server.cache.persistent_batch import Ints
from mamba_server.cache.state_cache import StateCache
from mamba_server.cache.tree import Match
from mamba_server.engine.queue_policy import WaitingQueue
from mamba_server.engine.schedule import PrefillPiece, Schedule
from mamba_server.engine.sequence import Phase, Sequence
from mamba_server.engine.shared_prefix import coming_depths, common_depth, deepest


@dataclass(slots=True)
class SchedulerCounters:
    preemptions: int = 0
    cached_tokens: int = 0
    recomputed_tokens: int = 0
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """Budgets of a step. `chunk`: prefill chunk; pieces end on its multiples unless they end the prompt."""

    step_tokens: int
    chunk: int
    max_running: int
    max_model_len: int


def rows_of(sequences: list[Sequence]) -> Ints:
    """Their rows of the persistent batch."""
    return np.array([each.row for each in sequences], np.int32)


class DecodeSet:
    """The sequences that decode, oldest member first, and their rows, looked up once for each set of them.

    A step keeps the list it was given: a change makes a new one.
    """

    def __init__(self) -> None:
        self.sequences: list[Sequence] = []
        self._rows: Ints | None = None

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self.sequences)

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def rows(self) -> Ints:
        """Row i is that of `sequences[i]`."""
        if self._rows is None:
            self._rows = rows_of(self.sequences)
        return self._rows

    def add(self, sequence: Sequence) -> None:
        """It decodes from the next step on."""
        self._change([*self.sequences, sequence])

    def remove(self, sequence: Sequence) -> None:
        """It has launched its last step, ended or was preempted; nothing happens if it is not here."""
        self._change([each for each in self.sequences if each is not sequence])

    def _change(self, sequences: list[Sequence]) -> None:
        self.sequences, self._rows = sequences, None


MOST_HELD = 64
"""Waiting sequences that one step may put off for the prefix of another."""


@dataclass(slots=True)
class Scheduler:
    """Holds the queues; `schedule` is called once a step, the rest as events come."""

    cache: StateCache
    limits: Limits
    waiting: WaitingQueue = field(default_factory=WaitingQueue)
    prefilling: list[Sequence] = field(default_factory=list)
    decoding: DecodeSet = field(default_factory=DecodeSet)
    leading: list[Sequence] = field(default_factory=list)
    """Sequences whose prefill may still leave checkpoints."""
    counters: SchedulerCounters = field(default_factory=SchedulerCounters)
    _short: tuple[int, ...] | None = None
    """Memory at the last refused admission."""

    @property
    def running(self) -> int:
        return len(self.prefilling) + len(self.decoding)

    @property
    def idle(self) -> bool:
        return not self.running and not len(self.waiting)

    def add(self, sequence: Sequence) -> None:
        self.waiting.push(sequence)

    # --- one step ------------------------------------------------------------------------------------

    def schedule(self, step: int) -> Schedule:
        """Decide step `step` and take the memory it needs."""
        decodes, rows, track = self._schedule_decodes(step)
        budget = max(self.limits.chunk, self.limits.step_tokens - len(decodes))
        pieces: list[PrefillPiece] = []
        for sequence in list(self.prefilling):
            if budget <= 0:
                break
            if sequence.phase is not Phase.PREFILL:
                continue
            launched = [each.sequence for each in pieces]
            piece = self._piece(sequence, budget, step, launched, decoding=bool(decodes))
            if piece is not None:
                pieces.append(piece)
                budget -= piece.stop - piece.start
        self._admit(pieces, budget, step)
        return Schedule(step, rows, track, decodes, pieces)

    def _schedule_decodes(self, step: int) -> tuple[list[Sequence], Ints, Ints]:
        decodes, batch, page_size = self.decoding.sequences, self.cache.batch, self.cache.page_size
        rows = self.decoding.rows
        depth = batch.depth[rows]
        needs_page = (depth % page_size == 0) & (depth // page_size >= batch.page_count[rows])
        stalled = {
            id(decodes[index])
            for index in np.flatnonzero(needs_page).tolist()
            if not self._extend_decode(decodes[index])
        }
        if stalled or self.decoding.sequences is not decodes:
            # Someone has to sit this step out, or was preempted.
            decodes = [each for each in self.decoding if id(each) not in stalled]
            rows = rows_of(decodes)
            depth = batch.depth[rows]
        if not decodes:
            return [], rows, rows
        track = np.zeros(len(rows), np.int32)
        for index in np.flatnonzero((depth + 1) % page_size == 0).tolist():
            sequence = decodes[index]
            reached = int(depth[index]) + 1
            if self.cache.tracks_decode(reached, reached - sequence.prompt_len):
                assert sequence.allocation is not None
                track[index] = self.cache.plan_decode(sequence.allocation, step)
        batch.launch(rows, depth + 1, step)
        for sequence in decodes:
            sequence.in_flight += 1
        exhausted = depth + 1 >= batch.last_depth[rows]
        if exhausted.any():
            # Its last token is in this step: no further launch, the commit will finish it.
            for index in np.flatnonzero(exhausted):
                self.decoding.remove(decodes[index])
        return decodes, rows, track

    def _extend_decode(self, sequence: Sequence) -> bool:
        """A page for the next token of `sequence`; others may be preempted for it."""
        if sequence.phase is not Phase.DECODE or sequence.allocation is None:
            return False
        while not self.cache.extend(sequence.allocation, sequence.allocation.depth + 1):
            if self.cache.retiring or self.cache.arena.has_fenced:
                # Memory comes back with the step in flight; waiting is cheaper than recomputing.
                return False
            victim = max((*self.prefilling, *self.decoding), key=Sequence.rank)
            if self.running == 1:
                return False
            self.preempt(victim)
            if victim is sequence:
                return False
        return True

    # --- prefill -------------------------------------------------------------------------------------

    def _piece(
        self, sequence: Sequence, budget: int, step: int, launched: list[Sequence], *, decoding: bool
    ) -> PrefillPiece | None:
        allocation = sequence.allocation
        assert allocation is not None
        start = allocation.depth
        take = aligned_piece(start, sequence.target - start, budget, self.limits.chunk)
        if take <= 0:
            return None
        stop = start + take
        while not self.cache.extend(allocation, stop):
            # What this step already launches cannot be taken back; while others decode, memory will come.
            if decoding or self.cache.retiring or self.cache.arena.has_fenced:
                return None
            victim = max((s for s in self.prefilling if s not in launched), key=Sequence.rank)
            if victim is sequence:
                return None
            self.preempt(victim)
        return self._launch_piece(sequence, start, stop, step)

    def _launch_piece(self, sequence: Sequence, start: int, stop: int, step: int) -> PrefillPiece:
        allocation = sequence.allocation
        assert allocation is not None
        final = stop == sequence.target
        checkpoints = self.cache.plan_prefill(allocation, stop, step)
        piece = PrefillPiece(sequence, start, stop, allocation.slot_in, allocation.live, checkpoints, final)
        self.cache.launched(allocation, stop, step)
        sequence.in_flight += 1
        if final:
            self.prefilling.remove(sequence)
            sequence.phase = Phase.DECODE
            self.cache.prefill_done(allocation)
            if stop < self.cache.batch.last_depth[allocation.row]:
                self.decoding.add(sequence)
        return piece

    # --- admission -----------------------------------------------------------------------------------

    def _admit(self, pieces: list[PrefillPiece], budget: int, step: int) -> None:
        self.waiting.release()
        if not len(self.waiting) or (self.running and self._memory() == self._short):
            return
        self._short = None

        matches: dict[tuple[str, int], Match] = {}
        held = 0

        def resumable(sequence: Sequence) -> int:
            matches[sequence.key] = self._match(sequence, step)
            return matches[sequence.key].resumable

        # Not `running`: whose last token is on its way does not decode any more, and is not over yet.
        while self.cache.admitted < self.limits.max_running:
            # An admission changes the tree: what was found before it no longer counts.
            matches.clear()
            sequence = self.waiting.pick(resumable)
            if sequence is None:
                return
            match = matches.get(sequence.key) or self._match(sequence, step)
            if self._waits_for_another(sequence, match):
                held += 1
                if held < MOST_HELD:
                    continue
                return
            if budget <= 0:
                # Only now: the prompt that takes the budget may be the one to wait for.
                return
            left = sequence.known - match.resumable
            take = aligned_piece(match.resumable, left, budget, self.limits.chunk)
            if take <= 0:
                return
            piece = self._try_admit(sequence, match, take, budget, step)
            if piece is None:
                # Asked again only when memory has changed hands.
                self._short = self._memory()
                return
            self.waiting.started(sequence, sequence.known - piece.start)
            pieces.append(piece)
            budget -= piece.stop - piece.start

    def _waits_for_another(self, sequence: Sequence, match: Match) -> bool:
        """Whether much of its prompt is being computed for somebody else, so that it had better wait."""
        if sequence.put_off or not self.cache.prefix_caching or self._needs_whole_prompt(sequence):
            return False
        self.leading = [
            each for each in self.leading if each.allocation is not None and coming_depths(each.allocation)
        ]
        awaited = deepest(
            sequence, self.leading, self.cache.page_size, new_checkpoints=self.cache.leaves_checkpoints
        )
        if awaited is None or awaited.depth - match.resumable < self.limits.chunk:
            return False
        if awaited.depth > awaited.allocation.depth:
            self.cache.add_branch(awaited.allocation, awaited.depth)
        self.waiting.hold(sequence, awaited)
        return True

    def _branches(self, sequence: Sequence, match: Match) -> list[int]:
        """Depths at which prompts that wait beside `sequence` part from it, most shared first."""
        if not self.cache.prefix_caching:
            return []
        beside = self.waiting.beside(sequence)
        depths = {common_depth(other, sequence, self.cache.page_size) for other in beside}
        return sorted((d for d in depths if d - match.resumable >= self.limits.chunk), reverse=True)

    def _memory(self) -> tuple[int, ...]:
        """What an admission that was refused for want of memory waits to see changed."""
        arena, tree = self.cache.arena, self.cache.tree
        return (
            arena.free_slots,
            arena.free_pages,
            tree.evictable_slots,
            tree.evictable_pages,
            len(self.waiting),
            self.running,
            self.cache.retiring,
            self.cache.strategy.slots_per_sequence,
        )

    def _match(self, sequence: Sequence, step: int) -> Match:
        match = self.cache.match(sequence.known_token_ids(), sequence.salt, step)
        if self._needs_whole_prompt(sequence):
            return self.cache.without(match, "prompt_logprobs")
        return match

    @staticmethod
    def _needs_whole_prompt(sequence: Sequence) -> bool:
        """Log-probabilities of the prompt need all of it computed."""
        return sequence.prompt_logprobs is not None and not sequence.prompt_done

    def _try_admit(
        self, sequence: Sequence, match: Match, take: int, budget: int, step: int
    ) -> PrefillPiece | None:
        token_ids, start = sequence.known_token_ids(), match.resumable
        branches = self._branches(sequence, match)
        boundary = sequence.turn_boundary
        allocation = self.cache.admit(token_ids, sequence.salt, match, start + take, boundary, branches)
        if allocation is None and match.node is not None and not self.running and not self.cache.retiring:
            # The checkpoint itself is in the way: alone, the sequence must run without it.
            match = self.cache.without(match, "no_memory")
            start = 0
            take = aligned_piece(0, sequence.known, budget, self.limits.chunk)
            allocation = self.cache.admit(token_ids, sequence.salt, match, take, boundary, branches)
        if allocation is None:
            return None
        self.waiting.remove(sequence)
        sequence.allocation = allocation
        sequence.target = sequence.known
        sequence.phase = Phase.PREFILL
        self.cache.batch.last_depth[allocation.row] = len(sequence.token_ids) - 1
        self.prefilling.append(sequence)
        if self.cache.prefix_caching:
            self.leading.append(sequence)
        self._count(sequence, match.resumable, match.cause)
        return self._launch_piece(sequence, start, start + take, step)

    def _count(self, sequence: Sequence, resumed: int, cause: str) -> None:
        if sequence.preemptions:
            self.counters.recomputed_tokens += sequence.known - resumed
            sequence.recomputed_tokens += sequence.known - resumed
            return
        sequence.cached_tokens = resumed
        sequence.miss_cause = cause
        self.counters.prompt_tokens += sequence.prompt_len
        self.counters.cached_tokens += resumed
        if cause:
            self.cache.counters.misses[cause] += 1

    # --- leaving -------------------------------------------------------------------------------------

    def preempt(self, sequence: Sequence) -> None:
        """Take everything back; it will be recomputed from what is known. No emitted token is lost."""
        self.counters.preemptions += 1
        sequence.preemptions += 1
        self._release(sequence)
        sequence.phase = Phase.WAITING
        self.waiting.push(sequence)

    def finish(self, sequence: Sequence, keep: int | None = None) -> None:
        """The sequence is over; its first `keep` tokens (default: all known) may be donated."""
        if sequence.phase is Phase.FINISHED:
            return
        if sequence.phase is Phase.WAITING:
            self.waiting.remove(sequence)
        else:
            self._release(sequence, keep)
        sequence.phase = Phase.FINISHED
        sequence.prompt_done = True

    def _release(self, sequence: Sequence, keep: int | None = None) -> None:
        allocation = sequence.allocation
        assert allocation is not None
        if sequence.phase is Phase.PREFILL:
            self.prefilling.remove(sequence)
            self.cache.prefill_done(allocation)
        else:
            self.decoding.remove(sequence)
        sequence.allocation = None

        def usable(sequence: Sequence = sequence, keep: int | None = keep) -> Ints:
            return sequence.token_ids[: sequence.known if keep is None else min(keep, sequence.known)]

        self.cache.retire(allocation, usable)
