"""Evaluates one strategy with one state dtype under a budget, and estimates its throughput. Pure.

The arena is cut into slabs of one state each; a slab is one slot or P pages, so slots and pages share it
without a fixed ratio. Slab 0 is padding.

The throughput is relative: good for ordering candidates, not for promises. Decoding is bound by bandwidth
(weights, states read and written, KV), prefill by arithmetic. Time is counted in bytes moved, and
`FLOPS_PER_BYTE` converts arithmetic into it.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import get_args

from mamba_api.choices import Role, Strategy
from mamba_planner.arithmetic import (
    active_parameters,
    kv_bytes_per_token,
    page_bytes,
    slab_bytes,
    state_bytes,
)
from mamba_planner.constraints import Constraints, StateDtype, Workload
from mamba_planner.memory import CPU_ARENA_PART, MOST_RUNNING, MemoryBudget
from mamba_planner.model_config import ModelConfig
from mamba_planner.strategy import Reservation, decode_spacing, reservation, slots_of_sequences
from mamba_settings.byte_size import binary_size

BETWEEN_TURNS = 2
"""Conversations in progress for each concurrent request: as many wait for people as for answers."""
NO_BUFFER_SHARE = 0.75
"""Share of a cache's savings that remains if checkpoints go only into free slots: a full cache keeps old
checkpoints, and new ones get no slot. Measured with the engine's scheduler and cache
(`benchmarks.planner`)."""
FLOPS_PER_BYTE = 200
"""FLOPs per byte of bandwidth: between an A100 (156) and an H100 (295), dense 16-bit."""


@dataclass(frozen=True, slots=True)
class StepTraffic:
    """Sizes from which the bytes that a candidate's steps move are estimated."""

    running: int
    """Number of sequences that decode."""
    state: int
    """Bytes of one state."""
    kv: int
    """Bytes of KV per token."""
    weights: int
    """Bytes of the weights."""


def expected_saved(
    strategy: Reservation, constraints: Constraints, workload: Workload, running: int, paths: int
) -> float:
    """Return the share of prompt tokens that are resumed instead of recomputed, 0 to 1.

    Reuse is possible for `shared_prefix_ratio` of the prompt, minus the tail to recompute. The tail is half
    the distance between the last checkpoints of an answer if decoding has slots for them; the whole last
    answer if it has only free slots (NoBuffer), because a cache in use leaves none free; and in between if
    borrowing fails because fewer checkpoints than running sequences are left (ExtraBufferLazy). Reuse also
    needs that the checkpoints are still cached. Nobody knows which conversations return, so a cache with room
    for as many `paths` as will return saves half of it, one with twice the room two thirds, and one with half
    the room a third, not nothing.
    """
    if not constraints.prefix_caching or running == 0:
        return 0.0
    tail = decode_spacing(workload.output_tokens, constraints.page_size, constraints.track_interval) / 2
    if not strategy.tracks_decode:
        tail = float(workload.output_tokens)
    elif strategy.borrows:
        tail *= 1 + max(0.0, 1 - paths / running)
    reusable = max(0.0, workload.shared_prefix_ratio * workload.prompt_tokens - tail)
    returning = BETWEEN_TURNS * max(workload.concurrency or 0, running) - running
    lasting = paths / (paths + returning)
    if not strategy.tracks_decode:
        lasting *= NO_BUFFER_SHARE
    return lasting * reusable / workload.prompt_tokens


def expected_throughput(model: ModelConfig, workload: Workload, traffic: StepTraffic, saved: float) -> float:
    """Return prompt and output tokens per unit of time; only results for one model can be compared."""
    if traffic.running == 0:
        return 0.0
    always, experts = active_parameters(model)
    token_share = 0.0
    batch_share = 0.0
    if model.moe is not None:
        token_share = min(1.0, model.moe.experts_per_token / model.moe.experts)
        batch_share = 1 - (1 - token_share) ** traffic.running
    per_parameter = traffic.weights / max(model.parameters, 1)
    weights = (always + experts * batch_share) * per_parameter
    context = workload.prompt_tokens + workload.output_tokens / 2
    step = weights + traffic.running * (2 * traffic.state + traffic.kv * context)
    prefill = workload.prompt_tokens * (1 - saved) * 2 * (always + experts * token_share) / FLOPS_PER_BYTE
    request = workload.output_tokens * step / traffic.running + prefill
    return workload.tokens / request


STATE_DTYPES: tuple[StateDtype, ...] = get_args(StateDtype)
CACHED_PER_RUNNING = 2
"""Cached paths worth keeping for each sequence that can run, if the memory belongs to a whole machine."""
CHECKPOINTS_PER_PATH = 1
"""Checkpoints that a cached path needs: the next turn resumes at the last one."""

RUNNING_PER_RECEPTION = 8
"""Running sequences of a decode engine for each reception: an answer takes many times as long as the state of
its prompt takes to arrive."""
EXPORTS_PER_RUNNING = 1
"""States that wait for their reader on a prefill engine for each prompt that it computes: the previous ones
are read while the next ones are computed."""


@dataclass(frozen=True, slots=True)
class SlabGeometry:
    """Sizes in bytes of slots, pages and slabs, for one type of states on one device."""

    state: int
    """Bytes of one state, and so of a slot."""
    kv: int
    """Bytes of KV per token."""
    page_size: int
    """Tokens of a page."""
    page: int
    """Bytes of a page; 0 without attention layers."""
    slab: int
    """Bytes of a slab, which is one slot or several pages."""

    @property
    def pages_per_slab(self) -> int:
        return self.slab // self.page if self.page else 0

    def pages(self, tokens: int) -> int:
        """Return the number of pages that hold `tokens` tokens."""
        return -(-tokens // self.page_size) if self.page else 0

    def slabs(self, sequences: int, slots: int, tokens: int) -> int:
        """Return the slabs that `sequences` of `tokens` tokens take with `slots` slots each."""
        return sequences * slots + self.page_slabs(sequences, tokens)

    def page_slabs(self, sequences: int, tokens: int) -> int:
        """Return the slabs that the pages of `sequences` of `tokens` tokens each take."""
        pages = sequences * self.pages(tokens)
        return -(-pages // self.pages_per_slab) if pages else 0

    def most(self, slabs: int, slots: int, tokens: int) -> int:
        """Return the largest number of sequences n with `self.slabs(n, slots, tokens) <= slabs`."""
        if slabs <= 0:
            return 0
        if not self.page:
            return slabs // slots
        return slabs * self.pages_per_slab // (self.pages(tokens) + slots * self.pages_per_slab)


@dataclass(frozen=True, slots=True)
class RoleDemand:
    """Memory that an engine with a role and a strategy holds, by the number of its running sequences.

    A unified engine holds its running sequences. A decode engine also holds the states that it receives, and
    starts a reception only if it can run the sequence afterwards: a reception counts as a whole sequence
    although it takes one slot at first. A prefill engine also holds each computed prompt until a decode
    engine has read it: one slot, and the pages.
    """

    role: Role
    slots_each: int
    """Slots of one running sequence."""

    def receptions(self, running: int) -> int:
        """Return the number of states that a decode engine receives at once."""
        return -(-running // RUNNING_PER_RECEPTION) if self.role == "decode" else 0

    def exports(self, running: int) -> int:
        """Return the number of states that a prefill engine keeps for their readers."""
        return running * EXPORTS_PER_RUNNING if self.role == "prefill" else 0

    def sequences(self, running: int) -> int:
        """Return the number of sequences whose pages are held.

        States that are handed over count as sequences.
        """
        return running + self.receptions(running) + self.exports(running)

    def slots(self, running: int) -> int:
        """Return the number of slots that `running` sequences and the states that are handed over hold."""
        receiving = self.receptions(running)
        return slots_of_sequences(running, receiving, self.slots_each) + self.exports(running)

    def slabs(self, shape: SlabGeometry, running: int, tokens: int) -> int:
        """Return the slabs of `running` sequences of `tokens` tokens, with states that are handed over."""
        return self.slots(running) + shape.page_slabs(self.sequences(running), tokens)

    def most(self, shape: SlabGeometry, slabs: int, tokens: int) -> int:
        """Return the largest number n of running sequences with `self.slabs(shape, n, tokens) <= slabs`."""
        high = shape.most(slabs, self.slots_each, tokens)
        if self.role == "unified":
            return high
        low = 0
        while low < high:
            middle = (low + high + 1) // 2
            if self.slabs(shape, middle, tokens) <= slabs:
                low = middle
            else:
                high = middle - 1
        return low

    def longest(self, shape: SlabGeometry, slabs: int) -> int:
        """Return the tokens for which one running sequence has room."""
        pages = (slabs - self.slots(1)) * shape.pages_per_slab // self.sequences(1)
        return pages * shape.page_size

    def sum_in_words(self, running: int) -> str:
        """Return the sum of slots in words, such as `(8 running + 1 receiving) x 2 slots`."""
        each = f"{self.slots_each} slot{'s' if self.slots_each > 1 else ''}"
        match self.role:
            case "decode":
                return f"({running} running + {self.receptions(running)} receiving) x {each}"
            case "prefill":
                return f"{running} running x {each} + {self.exports(running)} exported"
        return f"{running} running x {each}"


def slab_geometry(model: ModelConfig, constraints: Constraints, state_dtype: StateDtype) -> SlabGeometry:
    """Return the slab geometry of a model.

    Raises `UnusableInput` if tensor parallelism does not divide it.
    """
    dtype, ways = constraints.dtype or model.dtype, constraints.tensor_parallel
    state = state_bytes(model, state_dtype, dtype, ways).total
    kv = kv_bytes_per_token(model, dtype, ways, constraints.kv_cache_dtype)
    page = page_bytes(model, dtype, constraints.page_size, ways, constraints.kv_cache_dtype)
    return SlabGeometry(state, kv, constraints.page_size, page, slab_bytes(state, page))


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """A number of sequences at once, and how much cache that leaves."""

    score: float
    """Expected throughput; comparable between candidates of one model."""
    running: int
    cached_paths: int
    saved: float
    """Share of prompt tokens that are resumed."""

    @property
    def checkpoints(self) -> int:
        return self.cached_paths * CHECKPOINTS_PER_PATH


@dataclass(frozen=True, slots=True)
class Candidate:
    """A strategy with a type of states, and what the planner computed for it.

    `misfit` is the reason why it cannot run at all, or empty.
    """

    strategy: Strategy
    state_dtype: StateDtype
    shape: SlabGeometry
    slots_each: int
    """Slots of one running sequence."""
    slabs: int
    """All slabs of the arena, including padding."""
    running: int
    """Maximum number of sequences at once, with the cache evicted for them."""
    planned: int
    """Number of sequences expected at once: the declared concurrency, or the best trade-off between batch and
    cache."""
    fits: int
    """Maximum number of sequences without the configured limit."""
    cached_paths: int
    """Number of conversations whose checkpoints the cache has room for."""
    max_model_len: int
    workload: Workload
    saved: float
    """Share of prompt tokens that are expected to be resumed, 0 to 1."""
    score: float
    """Expected throughput, by which candidates for one model are compared."""
    misfit: str = ""
    need: int = 0
    """Bytes of arena that one sequence would need."""
    half: OperatingPoint | None = None
    """Result for half as many sequences, if the best trade-off leaves no checkpoint."""
    role: Role = "unified"
    required: int = 1
    """Number of sequences that the arena has to hold, for which a smaller configured one is raised."""
    required_bytes: int = 0
    """Bytes of arena that `required` sequences would need."""

    @property
    def demand(self) -> RoleDemand:
        """Memory that running sequences and the states that are handed over need."""
        return RoleDemand(self.role, self.slots_each)

    @property
    def checkpoints(self) -> int:
        return self.cached_paths * CHECKPOINTS_PER_PATH

    @property
    def slots(self) -> int:
        """Slots with `planned` sequences; without attention every slab except the padding is one."""
        return self._planned_slots if self.shape.page else self.slabs - 1

    @property
    def pages(self) -> int:
        """Pages in the slabs that hold no slots."""
        return (self.slabs - 1 - self._planned_slots) * self.shape.pages_per_slab

    @property
    def _planned_slots(self) -> int:
        return self.demand.slots(self.planned) + self.checkpoints


@lru_cache(maxsize=2048)  # an operator evaluates the same twelve for each object again and again
def evaluate(
    model: ModelConfig,
    constraints: Constraints,
    budget: MemoryBudget,
    workload: Workload,
    strategy: Strategy,
    state_dtype: StateDtype,
) -> Candidate:
    """Return the concurrency, checkpoints, expected savings and throughput of `strategy` with `state_dtype`.

    `workload` is the traffic to plan for, within `constraints`, the settings, and `budget`, the memory.
    """
    shape = slab_geometry(model, constraints, state_dtype)
    slot_rule = reservation(strategy, overlap=constraints.overlaps(budget.device.kind))
    slots = slot_rule.slots_per_sequence
    demand = RoleDemand(constraints.role, slots)
    workload = workload.of_role(constraints.role)
    limit = constraints.max_running_requests or MOST_RUNNING[budget.device.kind]
    longest = constraints.max_model_len or model.max_position
    required = _required(constraints, workload, limit)
    required_slabs = 1 + demand.slabs(shape, required, min(workload.tokens, longest))
    slabs = _arena_slabs(shape, budget, constraints, demand, required_slabs, limit, longest)
    free = slabs - 1
    min_tokens = longest if constraints.max_model_len else min(workload.tokens, longest)
    min_bytes = (1 + demand.slabs(shape, 1, min_tokens)) * shape.slab
    required_bytes = max(min_bytes, required_slabs * shape.slab)
    if min_bytes > slabs * shape.slab:
        misfit = (
            f"{_one_sequence(demand, min_tokens)} {demand.slots(1)} slots of {binary_size(shape.slab)} and "
            f"{demand.sequences(1) * shape.pages(min_tokens)} pages, {binary_size(min_bytes)} with padding; "
            f"the arena has {binary_size(budget.arena)}"
        )
        return Candidate(
            strategy, state_dtype, shape, slots, slabs, 0, 0, 0, 0, 0, workload, 0.0, 0.0, misfit, min_bytes,
            role=constraints.role, required=required, required_bytes=required_bytes,
        )  # fmt: skip
    if shape.page:
        longest = min(longest, demand.longest(shape, free))
    traffic = workload.within(longest)
    fits = demand.most(shape, free, traffic.tokens)
    running = min(fits, limit)
    planned = min(running, workload.concurrency) if workload.concurrency else None
    loads = [planned] if planned else range(1, running + 1)

    def operating_point(load: int) -> OperatingPoint:
        rest = free - demand.slabs(shape, load, traffic.tokens)
        paths = shape.most(rest, CHECKPOINTS_PER_PATH, traffic.tokens) if constraints.prefix_caching else 0
        saved = expected_saved(slot_rule, constraints, traffic, load, paths)
        step = StepTraffic(load, shape.state, shape.kv, budget.weights)
        return OperatingPoint(expected_throughput(model, traffic, step, saved), load, paths, saved)

    best = max(map(operating_point, loads), key=lambda point: (point.score, point.running))
    half = operating_point(best.running // 2) if best.running > 1 and not best.cached_paths else None
    return Candidate(
        strategy, state_dtype, shape, slots, slabs, running, best.running, fits, best.cached_paths, longest,
        traffic, best.saved, best.score, half=half, role=constraints.role, required=required,
        required_bytes=required_bytes,
    )  # fmt: skip


def _required(constraints: Constraints, workload: Workload, limit: int) -> int:
    """Return how many sequences an engine's arena has to hold; a smaller arena is made larger.

    A unified engine has to hold one. An engine of a pool has to hold as many as are declared or allowed, at
    most `limit`.
    """
    if constraints.role == "unified":
        return 1
    return min(workload.concurrency or constraints.max_running_requests or 1, limit)


def _one_sequence(demand: RoleDemand, tokens: int) -> str:
    """Return the beginning of a message that not even one sequence fits: subject and verb."""
    match demand.role:
        case "decode":
            return f"one sequence and one that is being received, of {tokens} tokens each, need"
        case "prefill":
            return f"one sequence and one that is being handed over, of {tokens} tokens each, need"
    return f"one sequence of {tokens} tokens needs"


def _arena_slabs(
    shape: SlabGeometry,
    budget: MemoryBudget,
    constraints: Constraints,
    demand: RoleDemand,
    required_slabs: int,
    limit: int,
    longest: int,
) -> int:
    slabs = budget.arena // shape.slab
    if not budget.arena_limited:
        return slabs
    running = demand.slabs(shape, limit, longest)
    cached = shape.slabs(limit * CACHED_PER_RUNNING, constraints.max_checkpoints_per_path, longest)
    if not constraints.prefix_caching:
        cached = 0
    least = 1 + demand.slabs(shape, 1, longest)
    if demand.role != "unified":
        least = max(least, required_slabs)
    return min(slabs, 1 + running + cached, max(slabs // CPU_ARENA_PART, least))
