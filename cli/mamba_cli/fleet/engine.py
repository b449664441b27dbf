"""One simulated engine: the product's state cache, and a model of how long its steps take.

The cache decides memory, matching, checkpoints and eviction; the profile gives the time. Consecutive steps
with the same work form one `StepRun`, which ends early when a request arrives. The length of an answer is
known when it starts, so its pages are allocated at once and no sequence is preempted.
"""

import heapq
import math
from collections import deque
from dataclasses import dataclass

from mamba_cli.fleet.engine_profile import CAP, CacheSize, EngineProfile
from mamba_cli.fleet.request import Request
from mamba_gateway.endpoints.engine_speed import EngineSpeed
from mamba_gateway.endpoints.pool import ProbeReport
from mamba_gateway.hand_over import TransferReport
from mamba_planner.arithmetic import prefill_work
from mamba_planner.strategy import receptions_within, reservation
from mamba_server.cache import Reception
from mamba_server.cache.eviction import Eviction
from mamba_server.cache.persistent_batch import PersistentBatch
from mamba_server.cache.state_cache import RadixStateCache
from mamba_server.cache.tree import RadixTree

MOST_RECEPTIONS = 8
"""States that an engine receives at once."""
MIN_PAGES_PER_STATE = 8
"""Smallest number of pages that fit into the bytes of one state."""
MIN_PAGE_TOKENS = 16
"""Shortest page in tokens; pages shorter than the product's would only cost time."""


def cache_of(profile: EngineProfile, block: int, longest: int, *, prefix_caching: bool) -> RadixStateCache:
    """Return the cache of an engine with this profile, for sequences of up to `longest` tokens.

    The profile gives the tokens of a page. If it does not, a page is as long as a `block` of the trace, or
    shorter if fewer than `MIN_PAGES_PER_STATE` pages would fit into the bytes of a state: rounding would then
    waste memory.
    """
    page = profile.page_tokens or _page_of(block, profile.tokens_per_state)
    return RadixStateCache(
        CacheSize(profile.slabs, 0, profile.tokens_per_state).arena(page),
        RadixTree(page, Eviction("RecomputeCost")),
        PersistentBatch(profile.max_running, -(-longest // page)),
        reservation(profile.strategy, overlap=profile.overlap),
        track_interval=profile.track_interval or block,
        cap=CAP,
        prefix_caching=prefix_caching,
    )


def _page_of(block: int, tokens_per_state: int) -> int:
    while block % 2 == 0 and block > MIN_PAGE_TOKENS and 0 < tokens_per_state < MIN_PAGES_PER_STATE * block:
        block //= 2
    return block


@dataclass(slots=True)
class StepRun:
    """Steps of equal length that an engine computes in a row, from second `begin` to `end`.

    The prompts of `group` are computed in them.
    """

    begin: float
    end: float
    steps: int
    group: list[Request]


@dataclass(slots=True)
class EngineCounters:
    """Counts of an engine since its start, as its metrics report them."""

    arrivals: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: float = 0.0
    first_tokens: int = 0
    first_tokens_late: int = 0
    finished: int = 0
    finished_slow: int = 0


class SimulatedEngine:
    """A simulated engine: computes when requests would be answered, but no answers.

    Requests come by `add`; the caller calls `advance` whenever `step_run` ends.
    """

    def __init__(self, name: str, profile: EngineProfile, cache: RadixStateCache) -> None:
        self.name, self.profile, self.cache = name, profile, cache
        self.queue: deque[Request] = deque()
        self.step_run: StepRun | None = None
        self.version = 0
        """Version of `step_run`; an event for another version is out of date."""
        self.queued_tokens = 0
        """Prompt tokens in the queue, without the prompts that `step_run` computes."""
        self.totals = EngineCounters()
        self._decoding: list[tuple[int, int, Request]] = []
        self._context = 0
        self._step = 0
        self._cache_step = 0
        self._slowness = 1.0

    # --- reports -------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Number of sequences that run."""
        return len(self._decoding) + (len(self.step_run.group) if self.step_run else 0)

    @property
    def decode_seconds(self) -> float:
        """Seconds of a step that decodes the current sequences and computes no prompt."""
        profile = self.profile
        return (
            profile.step_seconds
            + len(self._decoding) * profile.sequence_seconds
            + self._context * profile.context_seconds
        )

    @property
    def waiting_tokens(self) -> float:
        """Estimate of the prompt tokens still to be computed, from the share that was cached so far."""
        totals = self.totals
        share = 1.0 - totals.cached_tokens / totals.prompt_tokens if totals.prompt_tokens else 1.0
        step_run = self.step_run
        return self.queued_tokens * share + sum(
            r.prompt_tokens - r.resumed for r in (step_run.group if step_run else ())
        )

    @property
    def running_tokens(self) -> int:
        """Tokens of the sequences that run."""
        return self._context + sum(r.prompt_tokens for r in (self.step_run.group if self.step_run else ()))

    @property
    def slots_used(self) -> float:
        """Share of the state slots in use, by sequences and by states that arrive or wait for a reader."""
        capacity = self.cache.capacity
        moving = capacity.receiving + capacity.exported
        return (self.running * capacity.slots_per_sequence + moving) / self.profile.slabs

    @property
    def pages_used(self) -> float:
        """Share of the pages in use by sequences."""
        whole = self.profile.slabs * self.profile.tokens_per_state
        return self.running_tokens / whole if whole else 0.0

    @property
    def usage(self) -> float:
        """Share of the arena that slots and pages of sequences take together."""
        return min(1.0, self.slots_used + self.pages_used)

    def report(self, *, draining: bool = False, transfer: TransferReport | None = None) -> ProbeReport:
        """Return the engine's state as a gateway's probe reads it."""
        speed = EngineSpeed(
            self.profile.prefill_tokens_per_second, self.profile.attention_ratio, self.decode_seconds
        )
        return ProbeReport(
            True, draining, running=self.running, waiting=len(self.queue), kv_usage=self.usage, speed=speed,
            prompt_tokens_waiting=self.waiting_tokens,
            room=self._room,
            max_running=self.profile.max_running,
            transfer=transfer,
        )  # fmt: skip

    @property
    def credits(self) -> int:
        """States that the engine can take from other engines now."""
        capacity = self.cache.capacity
        unused = capacity.free_slots + capacity.evictable_slots
        room = receptions_within(unused, capacity.receiving, capacity.slots_per_sequence)
        return max(0, min(MOST_RECEPTIONS - capacity.receiving, room))

    @property
    def _room(self) -> float | None:
        """Prompt tokens for which memory is available; None if memory does not grow with prompts."""
        if not self.cache.capacity.pages_per_slab:
            return None
        return float(self.cache.capacity.available_pages * self.cache.page_size)

    def requests(self) -> list[Request]:
        """Return all requests of the engine, waiting and running."""
        group = self.step_run.group if self.step_run else []
        return [*self.queue, *group, *(request for _, _, request in self._decoding)]

    # --- events --------------------------------------------------------------------------------------

    def add(self, request: Request, now: float) -> None:
        """Add a request to the queue at `now`, in seconds of the simulation.

        A `step_run` that only decodes ends with its current step.
        """
        self.queue.append(request)
        self.queued_tokens += request.prompt_tokens
        self.totals.arrivals += 1
        self.totals.prompt_tokens += request.prompt_tokens
        step_run = self.step_run
        if step_run is None:
            self._begin(now)
        elif not step_run.group and step_run.steps > 1:
            step_seconds = (step_run.end - step_run.begin) / step_run.steps
            steps = min(step_run.steps, max(1, math.ceil((now - step_run.begin) / step_seconds)))
            step_run.end, step_run.steps = step_run.begin + step_seconds * steps, steps
            self.version += 1

    def slow(self, slowness: float, now: float) -> None:
        """Make everything from second `now` on take `slowness` times as long as in the profile.

        The rest of `step_run` is included.
        """
        if self.step_run is not None:
            step_run, ratio = self.step_run, slowness / self._slowness
            # The beginning moves as well, so that completed steps stay completed.
            step_run.begin, step_run.end = (
                now - (now - step_run.begin) * ratio,
                now + (step_run.end - now) * ratio,
            )
            self.version += 1
        self._slowness = slowness

    def advance(self) -> tuple[list[Request], list[Request]]:
        """End `step_run` and begin the next; return requests with a first token, and requests that ended."""
        step_run = self.step_run
        assert step_run is not None
        first_step, step_seconds = self._step, (step_run.end - step_run.begin) / step_run.steps
        self.totals.output_tokens += len(self._decoding) * step_run.steps
        self._context += len(self._decoding) * step_run.steps
        self._step += step_run.steps
        ended = []
        while self._decoding and self._decoding[0][0] <= self._step:
            finish, _, request = heapq.heappop(self._decoding)
            surplus = self._step - finish
            self.totals.output_tokens -= surplus
            self._context -= request.prompt_tokens + request.outputs + surplus
            request.ended_at = step_run.begin + (finish - first_step) * step_seconds
            self._retire(request)
            ended.append(request)
        if step_run.group:
            ended += self._compute(step_run)
        self.step_run = None
        self._begin(step_run.end)
        return step_run.group, ended

    def install(self, reception: Reception) -> None:
        """Give the tree a state that has arrived."""
        self.cache.confirm(reception)
        self._cache_step += 1
        self.cache.install(reception, self._cache_step)

    def _compute(self, step_run: StepRun) -> list[Request]:
        ended = []
        self._cache_step += 1
        for request in step_run.group:
            self.cache.plan_prefill(request.allocation, request.prompt_tokens, self._cache_step)
            self.cache.launch(request.allocation.row, request.prompt_tokens, self._cache_step)
        self.cache.advance(self._cache_step)
        for request in step_run.group:
            assert request.ids is not None
            self.cache.commit(request.allocation, request.ids, self._cache_step)
            request.computed += request.prompt_tokens - request.resumed
            request.first_token_at = step_run.end
            self.totals.output_tokens += min(request.outputs, 1)
            if request.outputs <= 1:
                request.ended_at = step_run.end
                self._retire(request)
                ended.append(request)
            else:
                self._context += request.prompt_tokens + 1
                heapq.heappush(self._decoding, (self._step + request.outputs - 1, request.number, request))
        return ended

    def _begin(self, now: float) -> None:
        profile, group = self.profile, list[Request]()
        tokens, work, resumed = 0, 0.0, 0
        while (
            self.queue
            and tokens < profile.chunk_tokens
            and len(self._decoding) + len(group) < profile.max_running
        ):
            request = self.queue[0]
            if not self._admit(request):
                break
            self.queue.popleft()
            self.queued_tokens -= request.prompt_tokens
            group.append(request)
            tokens += request.prompt_tokens - request.resumed
            work += prefill_work(request.resumed, request.prompt_tokens, profile.attention_ratio)
            resumed += request.resumed > 0
        if not group and not self._decoding:
            assert not self.queue, "an idle engine admits any request that fits at all"
            return
        steps = max(1, -(-tokens // profile.chunk_tokens)) if group else self._decoding[0][0] - self._step
        decoding = len(self._decoding)
        seconds = steps * self.decode_seconds + steps * steps / 2 * decoding * profile.context_seconds
        seconds += work / profile.prefill_tokens_per_second + resumed * profile.resume_seconds
        self.step_run = StepRun(now, now + seconds * self._slowness, steps, group)
        self.version += 1

    def _admit(self, request: Request) -> bool:
        self._cache_step += 1
        cache, step = self.cache, self._cache_step
        ids = request.prompt()
        whole = request.prompt_tokens + request.outputs
        match = cache.match(ids, "", step)
        allocation = cache.admit(ids, "", match, whole, 0)
        if allocation is None and match.node is not None and not self._decoding:
            match = match.without("no_memory")
            allocation = cache.admit(ids, "", match, whole, 0)
        if allocation is None:
            return False
        request.ids, request.allocation, request.resumed = ids, allocation, match.resumable
        self.totals.cached_tokens += match.resumable
        return True

    def _retire(self, request: Request) -> None:
        ids = request.ids
        assert ids is not None
        self.cache.retire(request.allocation, lambda: ids)
        self.cache.release_retired()
        if request.hand_over:
            # At once, because the next prompt may take the memory of any state that nobody holds.
            request.export = self.cache.export(ids, "", self._cache_step + 1)
        request.allocation = request.ids = None
