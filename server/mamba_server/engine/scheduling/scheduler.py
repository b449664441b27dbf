"""The scheduler: decides which sequences take part in the next step, and with how many tokens.

Pure: sequences and the state cache in, a `Schedule` out; no clock, no device, no I/O. Decodes come first,
then prefill pieces under the token budget: running and starting prompts in the order of their flows. A
shortage makes a sequence wait or preempts the one that came last; nothing raises.
"""

from collections.abc import Callable

import numpy as np

from mamba_server.cache import Bools, Ints, SequenceAllocation, StateCache, aligned_piece
from mamba_server.engine.scheduling.admission import Admission
from mamba_server.engine.scheduling.answer_lengths import AnswerLengths
from mamba_server.engine.scheduling.decode_set import DecodeSet, rows_of
from mamba_server.engine.scheduling.draft_rows import DraftRows, Proposals
from mamba_server.engine.scheduling.limits import SchedulerLimits
from mamba_server.engine.scheduling.queue_policy import Turn, WaitingQueue
from mamba_server.engine.scheduling.ring_rows import RingRows
from mamba_server.engine.scheduling.start_budget import StartBudget
from mamba_server.engine.sequences.schedule import PrefillPiece, Schedule
from mamba_server.engine.sequences.sequence import Phase, Sequence


class Scheduler:
    """Scheduler of one engine, with its queues. `schedule` is called once a step, the rest as events come.

    `budget`: bound on the time that the starts of a step take; None = only their number is bounded.
    `proposals`: source of drafts for the decodes; None = no drafts. `mask_words`: as in `DraftRows`. `rings`:
    rows whose states are written once in several tokens; None = each step writes all states.
    """

    def __init__(
        self,
        cache: StateCache,
        limits: SchedulerLimits,
        budget: StartBudget | None = None,
        proposals: Proposals | None = None,
        mask_words: int = 0,
        rings: RingRows | None = None,
    ) -> None:
        self.cache = cache
        self.limits = limits
        self._page_size = cache.capacity.page_size
        self.waiting = WaitingQueue()
        self.prefilling: list[Sequence] = []
        self.decoding = DecodeSet()
        self.arriving: dict[tuple[str, int], Sequence] = {}
        """Sequences whose state is being fetched: they take no turn before it has come or failed."""
        self.answers = AnswerLengths(limits.answer_tokens)
        self.admission = Admission(
            cache, limits, self.waiting, self.prefilling, self.decoding, self.answers, budget
        )
        self.counters = self.admission.counters
        self._draft_rows = DraftRows(cache, proposals, mask_words)
        self.rings = rings
        self.absorb: Callable[[Sequence], None] | None = None
        """Function that computes the inputs in a sequence's lane into its live slot, outside a step; the core
        sets it."""
        self.on_leave: list[Callable[[Sequence], None]] = []
        """Called with each sequence that is about to give its memory back, for the core and a draft model."""
        self._short: Sequence | None = None
        """First prefill that could not get the memory of a piece: no sequence that ranks after it starts."""

    @property
    def running(self) -> int:
        return self.admission.running

    @property
    def waiting_count(self) -> int:
        """Sequences that wait, for a turn or for the state of their prompt."""
        return len(self.waiting) + len(self.arriving)

    @property
    def idle(self) -> bool:
        return not self.running and not self.waiting_count

    def hold(self, sequence: Sequence) -> None:
        """Let `sequence` wait for the state of its prompt, until `add` queues it or `finish` ends it."""
        sequence.phase = Phase.ARRIVING
        self.arriving[sequence.key] = sequence

    def add(self, sequence: Sequence) -> None:
        self.arriving.pop(sequence.key, None)
        sequence.phase = Phase.WAITING
        self.waiting.push(sequence)
        self.admission.arrived(sequence)

    # --- one step ------------------------------------------------------------------------------------

    def schedule(self, step: int, tokens: int | None = None) -> Schedule:
        """Decide step `step` and take the memory it needs.

        `tokens`: most tokens of the step, decodes included; None = as many as the limits allow. One chunk is
        always allowed.
        """
        self._make_room()
        schedule = self._schedule_decodes(step)
        budget = self.limits.step_tokens if tokens is None else min(tokens, self.limits.step_tokens)
        budget = max(self.limits.chunk, budget - schedule.decode_tokens)
        schedule.pieces.extend(self._schedule_prefills(budget, step))
        return schedule

    def _schedule_decodes(self, step: int) -> Schedule:
        """Record the launch of the decodes of `step`; return a schedule of these alone."""
        decodes, rows = self.decoding.sequences, self.decoding.rows
        state = self.cache.decode_rows(rows)
        stalled = self._extend_decodes(decodes, state.needs_page)
        if stalled or self.decoding.sequences is not decodes:
            # A sequence has to skip this step, or was preempted.
            decodes = [sequence for sequence in self.decoding if id(sequence) not in stalled]
            rows = rows_of(decodes)
            state = self.cache.decode_rows(rows)
        if not decodes:
            return Schedule(step, rows, rows, [], [])
        reached = state.depth + 1
        track = self._track_decodes(decodes, reached, step)
        drafts, absorbed = self._draft_rows.plan(decodes, rows)
        ring = self.rings.plan(rows, reached) if self.rings is not None else None
        self.cache.launch(rows, reached, step)
        if self.rings is not None and ring is not None:
            self.rings.launched(rows, ring)
        for sequence in decodes:
            sequence.in_flight += 1
        if state.last.any():
            # This step samples the last token of these sequences: no further launch, the commit will finish
            # them.
            for index in np.flatnonzero(state.last):
                self.decoding.remove(decodes[index])
        return Schedule(step, rows, track, decodes, [], drafts, absorbed, ring)

    def _extend_decodes(self, decodes: list[Sequence], needs_page: Bools) -> set[int]:
        """Take the pages that the next tokens of `decodes` need, as `needs_page` says.

        Return the `id`s of the sequences that get none, and so cannot take part.
        """
        stalled = {
            id(decodes[index])
            for index in np.flatnonzero(needs_page).tolist()
            if not self._extend_decode(decodes[index])
        }
        stalled.update(map(id, self.decoding.undecided))
        return stalled

    def _track_decodes(self, decodes: list[Sequence], reached: Ints, step: int) -> Ints:
        """Take the slots of the checkpoints that are due at the depths `reached`; 0 where there is none."""
        slots = np.zeros(len(decodes), np.int32)
        for index in np.flatnonzero(reached % self._page_size == 0).tolist():
            sequence, depth = decodes[index], int(reached[index])
            assert sequence.allocation is not None
            slots[index] = self.cache.plan_decode(sequence.allocation, depth - sequence.prompt_len, step)
            if slots[index] and sequence.timeline is not None:
                sequence.timeline.checkpoint(depth)
        return slots

    def _extend_decode(self, sequence: Sequence) -> bool:
        """Take a page for the next token of `sequence`; other sequences may be preempted for it."""
        if sequence.phase is not Phase.DECODE or sequence.allocation is None:
            return False
        while not self.cache.extend(sequence.allocation, sequence.allocation.depth + 1):
            if self._memory_comes_back:
                # Waiting is cheaper than recomputing.
                return False
            if self.running == 1:
                return False
            victim = self._youngest()
            self.preempt(victim)
            if victim is sequence:
                return False
        return True

    @property
    def _memory_comes_back(self) -> bool:
        """Whether a step in flight holds memory that is free after it."""
        return self.cache.capacity.returning

    # --- prefill -------------------------------------------------------------------------------------

    def _schedule_prefills(self, budget: int, step: int) -> list[PrefillPiece]:
        self.admission.begin(step)
        pieces: list[PrefillPiece] = []
        for sequence in sorted(self.prefilling, key=lambda s: (self.waiting.turn(s), s.rank())):
            budget -= self._start(pieces, budget, step, before=self.waiting.turn(sequence))
            piece = self._piece(sequence, budget, step) if budget > 0 else None
            if piece is not None:
                pieces.append(piece)
                budget -= piece.stop - piece.start
        self._start(pieces, budget, step)
        return pieces

    def _start(self, pieces: list[PrefillPiece], budget: int, step: int, before: Turn | None = None) -> int:
        """Append the first pieces of starting sequences; return their tokens, at most `budget`.

        `before` admits only flows whose turn comes before it; None = all.
        """
        used = 0
        while admitted := self.admission.next(budget - used, before=before, short=self._short):
            sequence, tokens = admitted
            assert sequence.allocation is not None
            start = sequence.allocation.depth
            pieces.append(self._launch_piece(sequence, start, start + tokens, step))
            used += tokens
        return used

    def _piece(self, sequence: Sequence, budget: int, step: int) -> PrefillPiece | None:
        """Launch the next piece of a running prefill, of at most `budget` tokens.

        The result is None if the budget is too small for a piece, or memory is short.
        """
        allocation = sequence.allocation
        assert allocation is not None
        start = allocation.depth
        tokens = aligned_piece(start, sequence.target - start, budget, self.limits.chunk)
        if tokens <= 0:
            return None
        tokens = aligned_piece(start, tokens, self._room(sequence), self.limits.chunk)
        if tokens <= 0 or not self.cache.extend(allocation, start + tokens):
            if self._short is None or sequence.rank() < self._short.rank():
                self._short = sequence
            return None
        if sequence is self._short:
            self._short = None
        self.waiting.charge(sequence, tokens)
        return self._launch_piece(sequence, start, start + tokens, step)

    def _room(self, sequence: Sequence) -> int:
        """Return the tokens that a running prefill could compute with all memory that can be freed.

        Each older sequence keeps a page to grow: it would preempt this one for it.
        """
        allocation = sequence.allocation
        assert allocation is not None
        capacity = self.cache.capacity
        if not capacity.pages_per_slab:
            return sequence.target
        rank = sequence.rank()
        older = sum(other.rank() < rank for other in self.decoding)
        pages = allocation.page_count + max(0, capacity.available_pages - older)
        return pages * self._page_size - allocation.depth

    def _make_room(self) -> None:
        """Preempt younger sequences for a prefill that could not go on, as far as a chunk of it needs."""
        short = self._short
        if short is None or short.phase is not Phase.PREFILL or short.allocation is None:
            self._short = None
            return
        allocation, chunk = short.allocation, self.limits.chunk
        needed = min(short.target, (allocation.depth // chunk + 1) * chunk) - allocation.depth
        while self._room(short) < needed and not self._memory_comes_back:
            victim = self._youngest()
            if victim is short:
                return
            self.preempt(victim)

    def _launch_piece(self, sequence: Sequence, start: int, stop: int, step: int) -> PrefillPiece:
        allocation = sequence.allocation
        assert allocation is not None
        final = stop == sequence.target
        checkpoints = self.cache.plan_prefill(allocation, stop, step)
        piece = PrefillPiece(sequence, start, stop, allocation.slot_in, allocation.live, checkpoints, final)
        self.cache.launch(allocation.row, stop, step)
        sequence.in_flight += 1
        if final:
            self._prefilled(sequence)
            sequence.phase = Phase.DECODE
            if allocation.decodes:
                self.decoding.add(sequence)
        return piece

    def _prefilled(self, sequence: Sequence) -> None:
        """Record that the prompt of `sequence` is not computed any further."""
        self.prefilling.remove(sequence)
        self.waiting.prefilled(sequence)

    # --- leaving -------------------------------------------------------------------------------------

    def _youngest(self) -> Sequence:
        youngest: Sequence = max((*self.prefilling, *self.decoding), key=Sequence.rank)
        return youngest

    def preempt_youngest(self) -> bool:
        """Preempt the sequence that came last; return False if no other sequence runs."""
        if self.running <= 1:
            return False
        self.preempt(self._youngest())
        return True

    def preempt(self, sequence: Sequence) -> None:
        """Take back the memory of `sequence`, which is recomputed later. No emitted token is lost."""
        self.counters.preemptions += 1
        sequence.preemptions += 1
        self._release(sequence)
        sequence.phase = Phase.WAITING
        self.waiting.push(sequence)

    def finish(self, sequence: Sequence, keep: int | None = None) -> None:
        """End the sequence; its first `keep` tokens (default: all known) may be donated."""
        if sequence.phase is Phase.FINISHED:
            return
        if sequence.phase is Phase.ARRIVING:
            del self.arriving[sequence.key]
        elif sequence.phase is Phase.WAITING:
            self.waiting.remove(sequence)
        else:
            if sequence.params.max_tokens:
                self.answers.ended(sequence.outputs, cut=sequence.outputs >= sequence.params.max_tokens)
            self._release(sequence, keep)
        sequence.phase = Phase.FINISHED
        sequence.prompt_done = True

    def _ends_at_page(self, allocation: SequenceAllocation, keep: int | None) -> bool:
        """Return whether the prefix tree may take over the state in the sequence's live slot.

        The state must be at the end of a page, and at most `keep` tokens deep; None = any depth.
        """
        return allocation.depth % self._page_size == 0 and (keep is None or allocation.depth <= keep)

    def _release(self, sequence: Sequence, keep: int | None = None) -> None:
        allocation = sequence.allocation
        assert allocation is not None
        if sequence.phase is Phase.PREFILL:
            self._prefilled(sequence)
        else:
            self.decoding.remove(sequence)
        self.admission.departed(sequence)
        if allocation.waiting and self.absorb is not None and self._ends_at_page(allocation, keep):
            self.absorb(sequence)
        for leave in self.on_leave:
            leave(sequence)
        sequence.allocation = None

        def usable(sequence: Sequence = sequence, keep: int | None = keep) -> Ints:
            count = sequence.known_tokens
            return sequence.token_ids[: count if keep is None else min(keep, count)]

        self.cache.retire(allocation, usable)
