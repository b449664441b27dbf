"""`Admission`: starts waiting sequences in a step, limited by memory and planning time.

A piece is the part of one prompt that a step computes. A sequence starts if memory for its first piece is
available now and if it and all running sequences are expected to fit until they end. Part of the scheduler,
and pure like it.
"""

from collections import Counter, deque
from dataclasses import dataclass, field

from mamba_server.cache import Match, NearestPrefix, SequenceAllocation, StateCache, aligned_piece
from mamba_server.engine.scheduling.answer_lengths import AnswerLengths
from mamba_server.engine.scheduling.decode_set import DecodeSet
from mamba_server.engine.scheduling.limits import SchedulerLimits
from mamba_server.engine.scheduling.memory_forecast import MemoryForecast, SequenceGrowth
from mamba_server.engine.scheduling.prefix_explanation import explain
from mamba_server.engine.scheduling.queue_policy import Turn, WaitingQueue
from mamba_server.engine.scheduling.shared_prefix import common_depth, deepest
from mamba_server.engine.scheduling.start_budget import StartBudget
from mamba_server.engine.sequences.sequence import Phase, Sequence

MAX_DEFERRED = 64
"""Waiting sequences that one step may defer until another one has computed their shared prefix."""
MAX_STARTED = 8
"""Sequences that start in one step, whatever time they take."""
HALF_A_PAGE = 0.5
"""Average unused part of the last page of a sequence, in pages."""
FORECAST_STEPS = 16
"""Steps after which a refused forecast is repeated although no sequence has ended."""


@dataclass(slots=True)
class SchedulerCounters:
    """Counts what the scheduler did, for metrics; the numbers only grow."""

    preemptions: int = 0
    cached_tokens: int = 0
    recomputed_tokens: int = 0
    prompt_tokens: int = 0
    shared_tokens: int = 0
    """Prompt tokens that an earlier prompt or answer had, too; counted where the cache remembers prompts."""
    misses: Counter[str] = field(default_factory=Counter)
    """Admitted sequences that could have resumed more, by the cause that the cache named."""


@dataclass(slots=True)
class Admission:
    """Decides which waiting sequence starts next, and takes its memory.

    It shares the collections `waiting`, `prefilling` and `decoding` with its scheduler.
    """

    cache: StateCache
    limits: SchedulerLimits
    waiting: WaitingQueue
    prefilling: list[Sequence]
    decoding: DecodeSet
    answers: AnswerLengths
    budget: StartBudget | None = None
    """Bound on the time that the starts of a step take; None = only their number is bounded."""
    counters: SchedulerCounters = field(default_factory=SchedulerCounters)
    leading: list[Sequence] = field(default_factory=list)
    """Running sequences whose prefill may still leave checkpoints."""
    _arrived: deque[Sequence] = field(default_factory=deque)
    """New sequences that have not been compared with the leading prefills."""
    _departures: int = 0
    """Number of sequences that have ended or been preempted."""
    _refused_memory: tuple[int, ...] | None = None
    """`_memory()` at the last admission that the arena refused; retried only when it differs."""
    _refused_by_forecast: tuple[int, ...] | None = None
    """`_membership()` at the last admission that the forecast refused; retried only when it differs."""
    _open: bool = False
    _step: int = 0
    _started: int = 0
    _deferred: int = 0
    _matches: dict[tuple[str, int], Match] = field(default_factory=dict)
    """Cache matches of waiting sequences in this step."""
    _forecast: MemoryForecast | None = None
    _page_size: int = field(init=False)
    _prefix_caching: bool = field(init=False)

    def __post_init__(self) -> None:
        self._page_size = self.cache.capacity.page_size
        self._prefix_caching = self.cache.settings.prefix_caching

    @property
    def running(self) -> int:
        return len(self.prefilling) + len(self.decoding)

    def begin(self, step: int) -> None:
        """Prepare the admissions of `step`."""
        if self.waiting.release():
            self._refused_by_forecast = None
        self._step, self._started, self._deferred, self._forecast = step, 0, 0, None
        if self.budget is not None:
            self.budget.begin(answering=bool(self.decoding))
        self._matches.clear()
        self.leading = [
            leader
            for leader in self.leading
            if leader.allocation is not None and leader.allocation.coming_depths()
        ]
        self._open = len(self.waiting) > 0 and not (self.running and self._still_refused())
        if self._open:
            self._refused_memory = self._refused_by_forecast = None
            self._defer_arrived()
            # Each comparison costs time, so their number per step is bounded.
            self._open = self._deferred < MAX_DEFERRED

    def next(
        self, budget: int, *, before: Turn | None = None, short: Sequence | None = None
    ) -> tuple[Sequence, int] | None:
        """Start the next sequence; return it with the tokens of its first piece.

        The piece has at most `budget` tokens. `before` admits only flows whose turn comes before it; None =
        all. `short` is a prefill that waits for memory: no sequence that ranks after it starts. The result is
        None if no sequence waits that may start, or if memory, budget or the time to plan starts is used up.
        """
        while self._may_start():
            sequence = self.waiting.pick(self._resumable, before)
            if sequence is None:
                return None
            match = self._match(sequence)
            if self._defers_to_leader(sequence, match):
                self._open = self._deferred < MAX_DEFERRED
                continue
            if short is not None and sequence.rank() > short.rank():
                return None
            # Only here, because the prompt that takes the budget may be the one to wait for.
            tokens = aligned_piece(
                match.resumable, sequence.known_tokens - match.resumable, budget, self.limits.chunk
            )
            if budget <= 0 or tokens <= 0:
                return None
            return self._start(sequence, match, tokens, budget)
        return None

    def _may_start(self) -> bool:
        """Return whether memory, places and the time to plan this step allow one more start."""
        if not self._open or self._started >= MAX_STARTED:
            return False
        # Not `running`: a sequence whose last token is being computed no longer decodes, but still has its
        # place.
        if self.cache.capacity.admitted >= self.limits.max_running:
            return False
        return self.budget is None or self.budget.allows()

    def _start(
        self, sequence: Sequence, match: Match, tokens: int, budget: int
    ) -> tuple[Sequence, int] | None:
        """Start `sequence` if it fits, now and as forecast; return it with its first piece's tokens.

        If it does not fit, return None, and no other sequence starts in this step.
        """
        if not self._fits_forecast(sequence, match):
            self._refused_by_forecast = self._membership()
            self._open = False
            return None
        first_piece = self._try_admit(sequence, match, tokens, budget)
        if not first_piece:
            self._refused_memory = self._memory()
            self._open = False
            return None
        self._started += 1
        if self.budget is not None:
            self.budget.started()
        return sequence, first_piece

    def arrived(self, sequence: Sequence) -> None:
        """Record that `sequence` waits from now on."""
        self._arrived.append(sequence)

    def departed(self, sequence: Sequence) -> None:
        """Record that `sequence`, which was running, ended or was preempted."""
        self._departures += 1
        if sequence in self.leading:
            self.leading.remove(sequence)

    # --- prefixes ------------------------------------------------------------------------------------

    def _resumable(self, sequence: Sequence) -> int:
        match = self._matches.get(sequence.key)
        # Admissions of this step may have evicted the checkpoint; they have added none to the tree.
        if match is None or match.evicted:
            match = self._matches[sequence.key] = self._match(sequence)
        return match.resumable

    def _match(self, sequence: Sequence) -> Match:
        match = self.cache.match(sequence.known_token_ids(), sequence.salt, self._step)
        if self._needs_whole_prompt(sequence):
            return match.without("prompt_logprobs")
        return self._up_to_pins(sequence, match) if sequence.pins else match

    def _up_to_pins(self, sequence: Sequence, match: Match) -> Match:
        """Return the match up to the first prefix that is to be pinned and has no checkpoint of its own.

        The rest is computed once, so that the checkpoint serves other continuations, too. A state that has
        just come from elsewhere is not computed again.
        """
        if sequence.preemptions or sequence.arrived:
            return match
        for depth, _ in sequence.pins:
            if depth < match.resumable:
                prefix = sequence.known_token_ids()[: depth + 1]
                shallower = self.cache.match(prefix, sequence.salt, self._step)
                if shallower.resumable < depth:
                    return shallower
        return match

    @staticmethod
    def _needs_whole_prompt(sequence: Sequence) -> bool:
        """Return whether the prompt's log-probabilities or mean are requested: all of it is computed then."""
        is_read = sequence.prompt_logprobs is not None or sequence.params.pooling == "mean"
        return is_read and not sequence.prompt_done

    def _defer_arrived(self) -> None:
        """Compare new sequences with running prefills before these pass the end of the shared prefix."""
        if not self.leading:
            self._arrived.clear()
        while self._arrived and self._deferred < MAX_DEFERRED:
            sequence = self._arrived.popleft()
            if sequence.phase is Phase.WAITING and sequence.leader is None:
                self._defers_to_leader(sequence)

    def _defers_to_leader(self, sequence: Sequence, match: Match | None = None) -> bool:
        """Defer the sequence if a running prefill is computing at least a chunk of its prompt.

        Return whether it was deferred.
        """
        if sequence.deferred or not self._prefix_caching or self._needs_whole_prompt(sequence):
            return False
        if not self.leading:
            return False
        accepts_checkpoints = self.cache.capacity.accepts_checkpoints
        checkpoint = deepest(sequence, self.leading, self._page_size, new_checkpoints=accepts_checkpoints)
        if checkpoint is None:
            return False
        match = match or self._match(sequence)
        if checkpoint.depth - match.resumable < self.limits.chunk:
            return False
        self._deferred += 1
        self.cache.keep_checkpoint_at(checkpoint.allocation, checkpoint.depth)
        self.waiting.defer(sequence, checkpoint)
        return True

    def _branches(self, sequence: Sequence, match: Match) -> list[int]:
        """Return the depths at which other waiting prompts diverge from `sequence`, most shared first."""
        if not self._prefix_caching:
            return []
        others = self.waiting.oldest_others(sequence)
        depths = {common_depth(other, sequence, self._page_size) for other in others}
        return sorted((d for d in depths if d - match.resumable >= self.limits.chunk), reverse=True)

    # --- memory --------------------------------------------------------------------------------------

    def _still_refused(self) -> bool:
        """Return whether nothing has changed on which the last refusal depends."""
        if self._refused_memory is not None and self._refused_memory == self._memory():
            return True
        return self._refused_by_forecast is not None and self._refused_by_forecast == self._membership()

    def _memory(self) -> tuple[int, ...]:
        """Return the state on which an admission depends that the arena refused."""
        capacity = self.cache.capacity
        return (
            capacity.free_slots,
            capacity.free_pages,
            capacity.evictable_slots,
            capacity.evictable_pages,
            len(self.waiting),
            self.running,
            capacity.retiring,
            capacity.slots_per_sequence,
        )

    def _membership(self) -> tuple[int, ...]:
        """Return the state on which an admission depends that the forecast refused."""
        capacity = self.cache.capacity
        return (
            self._departures,
            len(self.waiting),
            capacity.retiring,
            capacity.slots_per_sequence,
            self._step // FORECAST_STEPS,
        )

    def prompt_room(self) -> int:
        """Return the prompt tokens for which memory can be freed; 0 when `max_running` sequences run.

        A model without attention needs slots and no pages, so every prompt that gets slots may have the
        maximum length.
        """
        capacity, limits = self.cache.capacity, self.limits
        slots, per_slab = capacity.slots_per_sequence, capacity.pages_per_slab
        if capacity.admitted >= limits.max_running:
            return 0
        if not per_slab:
            return (capacity.free_slots + capacity.evictable_slots) // slots * limits.max_model_len
        return max(0, capacity.available_pages - slots * per_slab) * capacity.page_size

    def _fits_forecast(self, sequence: Sequence, match: Match) -> bool:
        """Return whether `sequence` and all that run are expected to fit until they end."""
        if not self.running:
            # A sequence that does not fit alone was rejected when it arrived.
            return True
        capacity = self.cache.capacity
        per_slab, page_size = capacity.pages_per_slab, capacity.page_size
        if not per_slab:
            # No sequence grows where there are no pages.
            return True
        if self._forecast is None:
            running = [self._growth(other, per_slab) for other in (*self.decoding, *self.prefilling)]
            self._forecast = MemoryForecast(capacity.available_pages, page_size, running)
        pages = capacity.pages_for(sequence.known_tokens) - match.pages_in_use(page_size)
        pages += capacity.slots_per_sequence * per_slab
        return self._forecast.admits(SequenceGrowth(self._tokens_left(sequence), pages + HALF_A_PAGE, 0))

    def _growth(self, sequence: Sequence, pages_per_slab: int) -> SequenceGrowth:
        """Return the forecast of a running sequence; its slots count as the pages of their slabs."""
        allocation, page_size = sequence.allocation, self._page_size
        assert allocation is not None
        context = max(sequence.target, sequence.known_tokens)
        return SequenceGrowth(
            self._tokens_left(sequence),
            context / page_size - allocation.page_count + HALF_A_PAGE,
            allocation.own_pages(page_size) + (1 + allocation.reserved) * pages_per_slab,
        )

    def _tokens_left(self, sequence: Sequence) -> int:
        """Return the tokens until the expected end of `sequence`."""
        outputs = sequence.outputs
        return max(self.answers.expected(outputs, sequence.params.max_tokens) - outputs, 1)

    # --- start ---------------------------------------------------------------------------------------

    def _try_admit(self, sequence: Sequence, match: Match, tokens: int, budget: int) -> int:
        """Take the memory that `sequence` needs to start; return the tokens of its first piece, 0 = not now.

        The piece has `tokens` tokens behind the prefix that `match` resumes. If the sequence is the only one
        and its checkpoint takes the memory, it starts without the prefix, with a piece of at most `budget`
        tokens.
        """
        branches = self._branches(sequence, match)
        nearest = self._nearest(sequence) if sequence.explains else None
        allocation = self._allocate(sequence, match, match.resumable + tokens, branches)
        if allocation is None and match.resumable and not self.running and not self.cache.capacity.retiring:
            # The checkpoint itself takes the memory: the only sequence must run without it.
            match = match.without("no_memory")
            tokens = aligned_piece(0, sequence.known_tokens, budget, self.limits.chunk)
            allocation = self._allocate(sequence, match, tokens, branches)
        if allocation is None:
            return 0
        for depth, _ in sequence.pins:
            self.cache.keep_checkpoint_at(allocation, depth, forced=True)
        self.waiting.remove(sequence)
        sequence.make_room()
        sequence.allocation = allocation
        allocation.begin_lineage(sequence.request_id, sequence.client)
        sequence.target = sequence.known_tokens
        sequence.phase = Phase.PREFILL
        self.prefilling.append(sequence)
        if self._prefix_caching:
            self.leading.append(sequence)
        self._count(sequence, match)
        if nearest is not None:
            self._explain(sequence, match, nearest)
        self.waiting.started(sequence, tokens)
        return tokens

    def _allocate(
        self, sequence: Sequence, match: Match, context: int, branches: list[int]
    ) -> SequenceAllocation | None:
        return self.cache.admit(
            sequence.placement_ids(),
            sequence.salt,
            match,
            context,
            sequence.turn_boundary,
            branches,
            longest=sequence.longest,
        )

    def _count(self, sequence: Sequence, match: Match) -> None:
        resumed, cause = match.resumable, match.cause
        if sequence.lost_cause:
            cause = sequence.lost_cause
        if sequence.preemptions:
            self.counters.recomputed_tokens += sequence.known_tokens - resumed
            sequence.recomputed_tokens += sequence.known_tokens - resumed
            return
        sequence.cached_tokens = resumed
        sequence.miss_cause = cause
        self.counters.prompt_tokens += sequence.prompt_len
        self.counters.cached_tokens += resumed
        self.counters.shared_tokens += min(self._seen_before(sequence, match), sequence.prompt_len)
        if cause:
            self.counters.misses[cause] += 1

    def _seen_before(self, sequence: Sequence, match: Match) -> int:
        """Return the prompt tokens that an earlier sequence had, whether or not they are still cached."""
        allocation = sequence.allocation
        assert allocation is not None
        return max(match.kv_depth, match.resumable, allocation.seen_pages * self._page_size)

    def _nearest(self, sequence: Sequence) -> NearestPrefix | None:
        """Return the cached prompt nearest to the prompt of `sequence`; None once it is explained.

        Called before the sequence gets its memory, for which cached prompts may be evicted.
        """
        if sequence.explanation is not None:
            return None
        return self.cache.nearest(sequence.known_token_ids(), sequence.salt, sequence.client)

    def _explain(self, sequence: Sequence, match: Match, nearest: NearestPrefix) -> None:
        sequence.explanation = explain(
            nearest,
            match,
            sequence.miss_cause,
            sequence.prompt_len,
            self._page_size,
            caches=self._prefix_caching,
            seen=self._seen_before(sequence, match),
            transfer_failed=sequence.transfer_failed,
        )
