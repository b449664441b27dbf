"""`Admission`: which waiting sequences start in a step, limited by memory and planning time.

A sequence starts if memory for its first piece is available now and if it and all running sequences are
expected to fit until they end. Part of the scheduler, and pure like it.
"""

from collections import deque
from dataclasses import dataclass, field

from mamba_server.cache.chunk_plan import aligned_piece
from mamba_server.cache.state_cache import StateCache
from mamba_server.cache.tree import Match
from mamba_server.engine.answer_lengths import AnswerLengths
from mamba_server.engine.decode_set import DecodeSet
from mamba_server.engine.limits import SchedulerLimits
from mamba_server.engine.memory_forecast import MemoryForecast, SequenceGrowth
from mamba_server.engine.queue_policy import Turn, WaitingQueue
from mamba_server.engine.sequence import Phase, Sequence
from mamba_server.engine.shared_prefix import coming_depths, common_depth, deepest
from mamba_server.engine.start_budget import StartBudget

MAX_DEFERRED = 64
"""Waiting sequences that one step may defer until another one has computed their shared prefix."""
MAX_STARTED = 8
"""Sequences that start in one step, whatever time they take."""
HALF_A_PAGE = 0.5
"""Average unused share of the last page of a sequence, in pages."""
FORECAST_STEPS = 16
"""Steps after which a refused forecast is repeated although no sequence has ended."""


@dataclass(slots=True)
class SchedulerCounters:
    preemptions: int = 0
    cached_tokens: int = 0
    recomputed_tokens: int = 0
    prompt_tokens: int = 0
    shared_tokens: int = 0
    """Of them, those that an earlier prompt or answer had too; counted where the cache remembers these."""


@dataclass(slots=True)
class Admission:
    """Shares `waiting`, `prefilling` and `decoding` with the scheduler."""

    cache: StateCache
    limits: SchedulerLimits
    waiting: WaitingQueue
    prefilling: list[Sequence]
    decoding: DecodeSet
    answers: AnswerLengths
    budget: StartBudget | None = None
    """Bounds the time that the starts of a step take; None = their number alone is bounded."""
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

    @property
    def running(self) -> int:
        return len(self.prefilling) + len(self.decoding)

    def begin(self, step: int) -> None:
        """Admissions of `step` come next."""
        if self.waiting.release():
            self._refused_by_forecast = None
        self._step, self._started, self._deferred, self._forecast = step, 0, 0, None
        if self.budget is not None:
            self.budget.begin(answering=bool(self.decoding))
        self._matches.clear()
        self.leading = [
            each for each in self.leading if each.allocation is not None and coming_depths(each.allocation)
        ]
        refused = self._memory() == self._refused_memory or self._membership() == self._refused_by_forecast
        # Asked again only when memory has changed hands, or somebody has left.
        self._open = bool(len(self.waiting)) and not (self.running and refused)
        if self._open:
            self._refused_memory = self._refused_by_forecast = None
            self._defer_arrived()
            # Each comparison costs time, so a step makes so many and no more.
            self._open = self._deferred < MAX_DEFERRED

    def next(
        self, budget: int, *, before: Turn | None = None, short: Sequence | None = None
    ) -> tuple[Sequence, int] | None:
        """Start the next sequence: (sequence with its memory, tokens of its first piece, at most `budget`),
        or None if none can start.

        `before`: only flows that come before that turn. `short`: a prefill that waits for memory; no sequence
        that ranks after it starts.
        """
        # Not `running`: whose last token is on its way does not decode any more, and is not over yet.
        while self._open and self.cache.admitted < self.limits.max_running and self._has_start_budget():
            sequence = self.waiting.pick(self._resumable, before)
            if sequence is None:
                return None
            match = self._match(sequence)
            if self._defers_to_leader(sequence, match):
                if self._deferred < MAX_DEFERRED:
                    continue
                self._open = False
                return None
            if short is not None and sequence.rank() > short.rank():
                return None
            # Only now: the prompt that takes the budget may be the one to wait for.
            take = aligned_piece(match.resumable, sequence.known - match.resumable, budget, self.limits.chunk)
            if budget <= 0 or take <= 0:
                return None
            if not self._fits_forecast(sequence, match):
                self._refused_by_forecast = self._membership()
                self._open = False
                return None
            started = self._try_admit(sequence, match, take, budget)
            if not started:
                self._refused_memory = self._memory()
                self._open = False
                return None
            self._started += 1
            if self.budget is not None:
                self.budget.started()
            return sequence, started
        return None

    def _has_start_budget(self) -> bool:
        """Whether the time to plan this step allows one more start."""
        return self._started < MAX_STARTED and (self.budget is None or self.budget.allows())

    def arrived(self, sequence: Sequence) -> None:
        """`sequence` waits from now on."""
        self._arrived.append(sequence)

    def departed(self, sequence: Sequence) -> None:
        """`sequence`, which was running, ended or was preempted."""
        self._departures += 1
        if sequence in self.leading:
            self.leading.remove(sequence)

    # --- prefixes ------------------------------------------------------------------------------------

    def _resumable(self, sequence: Sequence) -> int:
        match = self._matches.get(sequence.key)
        # Admissions of this step took checkpoints from the tree, and gave it none.
        if match is None or (match.node is not None and not match.node.slot):
            match = self._matches[sequence.key] = self._match(sequence)
        return match.resumable

    def _match(self, sequence: Sequence) -> Match:
        match = self.cache.match(sequence.known_token_ids(), sequence.salt, self._step)
        if self._needs_whole_prompt(sequence):
            return self.cache.without(match, "prompt_logprobs")
        return match

    @staticmethod
    def _needs_whole_prompt(sequence: Sequence) -> bool:
        """Log-probabilities of the prompt need all of it computed."""
        return sequence.prompt_logprobs is not None and not sequence.prompt_done

    def _defer_arrived(self) -> None:
        """Compare new sequences with running prefills before these pass the end of the shared prefix."""
        if not self.leading:
            self._arrived.clear()
        while self._arrived and self._deferred < MAX_DEFERRED:
            sequence = self._arrived.popleft()
            if sequence.phase is Phase.WAITING and sequence.leader is None:
                self._defers_to_leader(sequence)

    def _defers_to_leader(self, sequence: Sequence, match: Match | None = None) -> bool:
        """Defer the sequence if a running prefill is computing at least a chunk of its prompt; whether it
        did."""
        if sequence.deferred or not self.cache.prefix_caching or self._needs_whole_prompt(sequence):
            return False
        awaited = deepest(
            sequence, self.leading, self.cache.page_size, new_checkpoints=self.cache.will_checkpoint
        )
        if awaited is None:
            return False
        match = match or self._match(sequence)
        if awaited.depth - match.resumable < self.limits.chunk:
            return False
        self._deferred += 1
        self.cache.keep_checkpoint_at(awaited.allocation, awaited.depth)
        self.waiting.defer(sequence, awaited)
        return True

    def _branches(self, sequence: Sequence, match: Match) -> list[int]:
        """Depths at which prompts that wait beside `sequence` part from it, most shared first."""
        if not self.cache.prefix_caching:
            return []
        beside = self.waiting.beside(sequence)
        depths = {common_depth(other, sequence, self.cache.page_size) for other in beside}
        return sorted((d for d in depths if d - match.resumable >= self.limits.chunk), reverse=True)

    # --- memory --------------------------------------------------------------------------------------

    def _memory(self) -> tuple[int, ...]:
        """State on which an admission depends that the arena refused."""
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

    def _membership(self) -> tuple[int, ...]:
        """State on which an admission depends that the forecast refused."""
        return (
            self._departures,
            len(self.waiting),
            self.cache.retiring,
            self.cache.strategy.slots_per_sequence,
            self._step // FORECAST_STEPS,
        )

    def prompt_room(self) -> int:
        """Prompt tokens that there is memory for, all evicted that nobody uses; 0 when as many run as may.

        Without attention a sequence takes slots alone, so each counts as the longest prompt.
        """
        cache, limits = self.cache, self.limits
        slots, per_slab = cache.strategy.slots_per_sequence, cache.arena.pages_per_slab
        if cache.admitted >= limits.max_running:
            return 0
        if not per_slab:
            held = cache.arena.free_slots + cache.tree.evictable_slots
            return held // slots * limits.max_model_len
        return max(0, cache.available_pages - slots * per_slab) * cache.page_size

    def _fits_forecast(self, sequence: Sequence, match: Match) -> bool:
        """Whether all that run and `sequence` are expected to fit until they end."""
        cache = self.cache
        if not cache.arena.pages_per_slab or not self.running:
            # Without pages nobody grows; and alone it fits, or it would not have been taken in.
            return True
        if self._forecast is None:
            running = [self._growth(each) for each in (*self.decoding, *self.prefilling)]
            self._forecast = MemoryForecast(cache.available_pages, cache.page_size, running)
        slots = cache.strategy.slots_per_sequence * cache.arena.pages_per_slab
        wanted = cache.pages_for(sequence.known) - cache.pages_in_use(match) + slots
        return self._forecast.admits(SequenceGrowth(self._tokens_left(sequence), wanted + HALF_A_PAGE, 0))

    def _growth(self, sequence: Sequence) -> SequenceGrowth:
        """Of one that runs; its slots count as the pages of their slabs."""
        cache, allocation = self.cache, sequence.allocation
        assert allocation is not None
        context = max(sequence.target, sequence.known)
        return SequenceGrowth(
            self._tokens_left(sequence),
            context / cache.page_size - allocation.page_count + HALF_A_PAGE,
            cache.own_pages(allocation) + (1 + allocation.reserved) * cache.arena.pages_per_slab,
        )

    def _tokens_left(self, sequence: Sequence) -> int:
        """Tokens until its expected end."""
        outputs = sequence.outputs
        return max(self.answers.expected(outputs, sequence.params.max_tokens) - outputs, 1)

    # --- start ---------------------------------------------------------------------------------------

    def _try_admit(self, sequence: Sequence, match: Match, take: int, budget: int) -> int:
        """Take the memory of the first piece; how many tokens that is, 0 = it cannot be had."""
        token_ids, start = sequence.known_token_ids(), match.resumable
        branches = self._branches(sequence, match)
        boundary = sequence.turn_boundary
        allocation = self.cache.admit(token_ids, sequence.salt, match, start + take, boundary, branches)
        if allocation is None and match.node is not None and not self.running and not self.cache.retiring:
            # The checkpoint itself is in the way: alone, the sequence must run without it.
            match = self.cache.without(match, "no_memory")
            take = aligned_piece(0, sequence.known, budget, self.limits.chunk)
            allocation = self.cache.admit(token_ids, sequence.salt, match, take, boundary, branches)
        if allocation is None:
            return 0
        self.waiting.remove(sequence)
        sequence.make_room()
        sequence.allocation = allocation
        sequence.target = sequence.known
        sequence.phase = Phase.PREFILL
        self.cache.batch.last_depth[allocation.row] = sequence.longest - 1
        self.prefilling.append(sequence)
        if self.cache.prefix_caching:
            self.leading.append(sequence)
        self._count(sequence, match)
        self.waiting.started(sequence, take)
        return take

    def _count(self, sequence: Sequence, match: Match) -> None:
        resumed, cause = match.resumable, match.cause
        if sequence.preemptions:
            self.counters.recomputed_tokens += sequence.known - resumed
            sequence.recomputed_tokens += sequence.known - resumed
            return
        sequence.cached_tokens = resumed
        sequence.miss_cause = cause
        self.counters.prompt_tokens += sequence.prompt_len
        self.counters.cached_tokens += resumed
        self.counters.shared_tokens += min(self._seen_before(sequence, match), sequence.prompt_len)
        if cause:
            self.cache.counters.misses[cause] += 1

    def _seen_before(self, sequence: Sequence, match: Match) -> int:
        """Tokens of its prompt that an earlier sequence had, whether or not they are still cached."""
        allocation = sequence.allocation
        assert allocation is not None
        seen = allocation.sighting.shared if allocation.sighting is not None else 0
        return max(match.kv_depth, match.resumable, seen * self.cache.page_size)
