"""`plan`: strategy, state dtype, concurrency and arena of one engine from its model and its memory. Pure.

The engine sizes its arena with it, the operator writes it into the status and the command line shows it: one
computation, so that the plan shown is the plan that runs.
"""

from dataclasses import replace

from mamba_api.choices import FP8_PAGES
from mamba_planner.arithmetic import kv_bytes_per_token, page_bytes
from mamba_planner.candidates import (
    CHECKPOINTS_PER_PATH,
    STATE_DTYPES,
    Candidate,
    evaluate,
)
from mamba_planner.choice import choose, reject, why
from mamba_planner.constraints import Constraints, Workload
from mamba_planner.errors import InsufficientMemory, UnusableInput
from mamba_planner.memory import CPU_ARENA_PART, MOST_RUNNING, Device, MemoryBudget
from mamba_planner.memory_plan import (
    OUTSIDE,
    LedgerLine,
    MemoryPlan,
    RaisedArena,
    RejectedCandidate,
    Tier,
    TierPlan,
)
from mamba_planner.model_config import ModelConfig
from mamba_planner.strategy import MOST_ROBUST_FIRST
from mamba_settings.byte_size import binary_size


def plan(
    model: ModelConfig,
    constraints: Constraints,
    device: Device,
    weights_bytes: int | None = None,
    workload: Workload | None = None,
    workspace: int | None = None,
) -> MemoryPlan:
    """Plan one engine.

    Args:
        model: the model.
        constraints: the fixed values; `Constraints.of(settings)` for an engine.
        device: the device and its memory. With `constraints.arena_bytes`, only measured main memory is
            compared with the plan; other memory only limits how far an arena that is too small is raised.
        weights_bytes: true bytes of the weights on one device; None = by parameter count.
        workload: declared or measured traffic; None = a cautious assumption.
        workspace: measured bytes of the largest step; None = by arithmetic.

    Raises:
        InsufficientMemory: weights, workspace and one sequence need more than the budget.
        UnusableInput: an input cannot be planned with, such as tensor parallelism that does not divide.
    """
    _check_length(model, constraints)
    traffic = workload or Workload()
    budget = MemoryBudget.of(model, constraints, device, weights_bytes, workspace)
    candidates = _candidates(model, constraints, budget, traffic)
    allowed = _allowed(candidates, constraints)
    small: Candidate | None = None
    if constraints.role != "unified" and constraints.arena_bytes is not None:
        small = _closest_below_need(allowed, constraints.arena_bytes)
    if small is not None:
        arena = _raised_size(small, budget, constraints)
        larger = replace(constraints, arena_bytes=arena)
        budget = MemoryBudget.of(model, larger, device, weights_bytes, workspace)
        candidates = _candidates(model, constraints, budget, traffic)
        allowed = _allowed(candidates, constraints)
    if all(candidate.misfit for candidate in allowed):
        raise does_not_fit(min(allowed, key=lambda candidate: candidate.need), budget)
    hint = state_hint(model, constraints)
    chosen = choose(allowed, constraints, traffic, hint)
    reason = why(chosen, allowed, constraints, traffic)
    rejected = reject(candidates, chosen, constraints, traffic, hint)
    memory_plan = _plan(model, constraints, budget, traffic, chosen, reason, rejected)
    return memory_plan if small is None else _with_raise(memory_plan, small, constraints, budget)


def _check_length(model: ModelConfig, constraints: Constraints) -> None:
    limit, length = model.position_limit, constraints.max_model_len
    if limit is not None and length is not None and length > limit:
        raise UnusableInput(
            f"maxModelLen {length:,} is too large: beyond {limit:,} tokens the positions of this model (rope "
            "type dynamic or longrope) depend on the length of the text, so cached keys would be wrong; use "
            f"at most {limit:,}"
        )


def _candidates(
    model: ModelConfig, constraints: Constraints, budget: MemoryBudget, traffic: Workload
) -> list[Candidate]:
    return [
        evaluate(model, constraints, budget, traffic, strategy, state_dtype)
        for state_dtype in STATE_DTYPES
        for strategy in MOST_ROBUST_FIRST
    ]


def _allowed(candidates: list[Candidate], constraints: Constraints) -> list[Candidate]:
    """Return the candidates that the settings do not exclude."""
    return [
        candidate
        for candidate in candidates
        if constraints.strategy in (None, candidate.strategy)
        and constraints.state_dtype in (None, candidate.state_dtype)
    ]


def _closest_below_need(candidates: list[Candidate], arena: int) -> Candidate | None:
    """Return the candidate that needs the smallest arena, if `arena` bytes suffice for none of them.

    None = they suffice for one of the candidates. The result has 32-bit states if any candidate has: states
    must not be rounded only to raise the arena by less.
    """
    if any(candidate.required_bytes <= arena for candidate in candidates):
        return None
    exact = [candidate for candidate in candidates if candidate.state_dtype == "float32"]
    return min(exact or candidates, key=lambda candidate: candidate.required_bytes)


def _raised_size(small: Candidate, budget: MemoryBudget, constraints: Constraints) -> int:
    """Return the bytes of the raised arena: as many as the required sequences need, as far as memory allows.

    The result has room for one sequence in any case. If the machine lacks that memory, the budget that the
    caller computes next refuses it.
    """
    if not budget.device.memory:
        return small.required_bytes
    room = int(budget.device.memory * constraints.utilization) - budget.fixed
    slab = small.shape.slab
    one = (1 + small.demand.slabs(small.shape, 1, small.workload.tokens)) * slab
    return max(min(small.required_bytes, room // slab * slab), one, small.need)


def _with_raise(
    memory_plan: MemoryPlan, small: Candidate, constraints: Constraints, budget: MemoryBudget
) -> MemoryPlan:
    """Return the plan with an account of the raised arena, which is also its first note."""
    shape, demand = small.shape, small.demand
    configured = constraints.arena_bytes or 0
    page_slabs = shape.page_slabs(demand.sequences(small.required), small.workload.tokens)
    raised = RaisedArena(
        configured=configured,
        arena=budget.arena,
        held=max(configured // shape.slab - 1 - page_slabs, 0),
        needed=demand.slots(small.required),
        why=demand.sum_in_words(small.required),
        pages_before=0 if small.misfit else small.pages,
        pages=memory_plan.pages,
    )
    return replace(memory_plan, raised=raised, notes=(raised.words(), *memory_plan.notes))


def state_hint(model: ModelConfig, constraints: Constraints) -> str | None:
    """Return the state dtype that the model requires; None if it requires none, or the settings fix one."""
    return model.state_dtype_hint if constraints.state_dtype is None else None


def does_not_fit(closest: Candidate, budget: MemoryBudget) -> InsufficientMemory:
    """Return the error that nothing fits; `closest` is the candidate that needs the least memory."""
    need = budget.fixed + closest.need
    return InsufficientMemory(
        f"{budget.fixed_in_words()} and one sequence "
        f"need {binary_size(need)} but the budget is {binary_size(budget.total)}: with {closest.strategy} "
        f"and {closest.state_dtype} states {closest.misfit}",
        need=need,
        have=budget.total,
    )


def _plan(
    model: ModelConfig,
    constraints: Constraints,
    budget: MemoryBudget,
    traffic: Workload,
    candidate: Candidate,
    reason: str,
    rejected: tuple[RejectedCandidate, ...],
) -> MemoryPlan:
    shape = candidate.shape
    ledger = _ledger(candidate, budget)
    return MemoryPlan(
        strategy=candidate.strategy,
        state_dtype=candidate.state_dtype,
        reason=reason,
        arena_bytes=candidate.slabs * shape.slab,
        slab_bytes=shape.slab,
        slabs=candidate.slabs,
        page_size=shape.page_size,
        page_bytes=shape.page,
        pages_per_slab=shape.pages_per_slab,
        state_bytes=shape.state,
        kv_bytes_per_token=shape.kv,
        slots=candidate.slots,
        pages=candidate.pages,
        slots_per_sequence=candidate.slots_each,
        overlap=constraints.overlaps(budget.device.kind),
        max_running_requests=candidate.running,
        planned_running=candidate.planned,
        max_model_len=candidate.max_model_len,
        checkpoints=candidate.checkpoints,
        binding_constraint=_binding(candidate, constraints),
        headroom_bytes=budget.total - sum(line.bytes for line in ledger if line.item in _RUNNING_ITEMS),
        expected_saved=candidate.saved,
        workload=candidate.workload,
        weights_bytes=budget.weights,
        adapters_bytes=budget.adapters,
        draft_model_bytes=budget.draft_model,
        budget_bytes=budget.total,
        ledger=ledger,
        rejected=rejected,
        notes=_notes(model, constraints, budget, traffic.of_role(candidate.role), candidate),
        kv_cache_dtype=constraints.kv_cache_dtype,
        role=candidate.role,
        receptions=candidate.demand.receptions(candidate.planned),
        exports=candidate.demand.exports(candidate.planned),
        tiers=_tiers(constraints, candidate),
    )


ADAPTERS = "places for adapters"
"""Line of the ledger for the memory of adapters, with engines that have any."""
DRAFT_MODEL = "draft model with its states and pages"
"""Line of the ledger for the memory of a second model that drafts, with engines that have one."""
_RUNNING_ITEMS = (
    "weights",
    ADAPTERS,
    DRAFT_MODEL,
    "workspace",
    "padding slab",
    "slots of running sequences",
    "pages of running sequences",
    "slots of receptions",
    "pages of receptions",
    "slots of exports",
    "pages of exports",
)


def _ledger(candidate: Candidate, budget: MemoryBudget) -> tuple[LedgerLine, ...]:
    slab = candidate.shape.slab
    tokens = candidate.workload.tokens
    live = candidate.planned * candidate.slots_each
    running = candidate.shape.slabs(candidate.planned, candidate.slots_each, tokens)
    held = candidate.demand.slabs(candidate.shape, candidate.planned, tokens)
    cached = candidate.shape.slabs(candidate.cached_paths, CHECKPOINTS_PER_PATH, tokens)
    lines = [
        LedgerLine("weights", budget.weights),
        *([LedgerLine(ADAPTERS, budget.adapters)] if budget.adapters else []),
        *([LedgerLine(DRAFT_MODEL, budget.draft_model)] if budget.draft_model else []),
        LedgerLine("workspace", budget.workspace),
        LedgerLine("padding slab", slab),
        LedgerLine("slots of running sequences", live * slab),
        LedgerLine("pages of running sequences", (running - live) * slab),
        *_handed_over(candidate, running, live),
        LedgerLine("slots of checkpoints", candidate.checkpoints * slab),
        LedgerLine("pages of checkpoints", (cached - candidate.checkpoints) * slab),
        LedgerLine("free slabs", (candidate.slabs - 1 - held - cached) * slab),
    ]
    lines.append(LedgerLine(OUTSIDE, budget.total - sum(line.bytes for line in lines)))
    return tuple(lines)


def _handed_over(candidate: Candidate, running: int, live: int) -> list[LedgerLine]:
    """Return the ledger's lines for the states that an engine of a pool receives or hands over."""
    if candidate.role == "unified":
        return []
    demand, slab = candidate.demand, candidate.shape.slab
    slots = demand.slots(candidate.planned) - live
    held = demand.slabs(candidate.shape, candidate.planned, candidate.workload.tokens)
    what = "receptions" if candidate.role == "decode" else "exports"
    return [
        LedgerLine(f"slots of {what}", slots * slab),
        LedgerLine(f"pages of {what}", (held - running - slots) * slab),
    ]


def _tiers(constraints: Constraints, candidate: Candidate) -> tuple[TierPlan, ...]:
    """Return the tiers that the settings name, the fastest first."""
    shape = candidate.shape
    bundle = shape.state + shape.pages(candidate.workload.tokens) * shape.page
    sizes: dict[Tier, int] = {"hostMemory": constraints.host_memory, "disk": constraints.disk}
    return tuple(TierPlan(tier, size, size // max(bundle, 1)) for tier, size in sizes.items() if size)


def _binding(candidate: Candidate, constraints: Constraints) -> str:
    if candidate.running < candidate.fits:
        return "configured limit" if constraints.max_running_requests else "default limit"
    if candidate.running <= 1:
        return "memory"
    live = candidate.demand.slots(candidate.running)
    pages = candidate.shape.page_slabs(
        candidate.demand.sequences(candidate.running), candidate.workload.tokens
    )
    return "state slots" if live >= pages else "kv pages"


def _notes(
    model: ModelConfig,
    constraints: Constraints,
    budget: MemoryBudget,
    traffic: Workload,
    candidate: Candidate,
) -> tuple[str, ...]:
    notes = []
    if not candidate.workload.declared:
        notes.append(
            f"no workload declared: assumed prompts of {candidate.workload.prompt_tokens:,} tokens, "
            f"{candidate.workload.shared_prefix_ratio:.0%} of them shared, and outputs of "
            f"{candidate.workload.output_tokens:,} tokens"
        )
    elif candidate.workload.tokens < traffic.tokens:
        notes.append(
            f"sequences of the {traffic.origin} workload, {traffic.lengths} tokens, are longer than the "
            f"limit of {candidate.max_model_len:,}: planned for {candidate.workload.lengths}"
        )
    if (traffic.concurrency or 0) > candidate.running:
        notes.append(
            f"the {traffic.origin} concurrency of {traffic.concurrency:,} is not reached: "
            f"{candidate.running:,} sequences can run"
        )
    if (constraints.max_model_len or 0) > model.max_position:
        notes.append(
            f"the model was trained for {model.max_position:,} tokens, and {constraints.max_model_len:,} are "
            "allowed: answers may get worse beyond the model's own limit"
        )
    if constraints.max_model_len is None and candidate.max_model_len < model.max_position:
        notes.append(
            f"the model's limit of {model.max_position:,} tokens does not fit: lowered to "
            f"{candidate.max_model_len:,}"
        )
    if constraints.max_running_requests is None and candidate.running < candidate.fits:
        notes.append(
            f"limited to {MOST_RUNNING[budget.device.kind]:,} running sequences; set maxRunningRequests for "
            "more"
        )
    if budget.arena_limited and candidate.slabs * candidate.shape.slab < budget.arena:
        arena = candidate.slabs * candidate.shape.slab
        reached = arena + candidate.shape.slab > budget.arena // CPU_ARENA_PART
        why = (
            "a quarter"
            if reached
            else f"the most that {candidate.running:,} sequences and their cache can use"
        )
        notes.append(
            f"arena limited to {binary_size(arena)} of {binary_size(budget.arena)} free memory, {why}; set "
            "the arena size for more"
        )
    if constraints.kv_cache_dtype == FP8_PAGES:
        notes.append(_narrow_pages(model, constraints, candidate))
    if model.draft_head:
        notes.append(_pages_of_head(model, constraints, candidate))
    return tuple(notes)


def _pages_of_head(model: ModelConfig, constraints: Constraints, candidate: Candidate) -> str:
    """Return the note on what the model's head for drafts takes from the cache."""
    plain = page_bytes(
        replace(model, draft_head=False), constraints.dtype or model.dtype, constraints.page_size,
        constraints.tensor_parallel, constraints.kv_cache_dtype,
    )  # fmt: skip
    return (
        f"the model's own head drafts: it takes {1 - plain / candidate.shape.page:.0%} of each page; set "
        "speculation to Ngram or Off to leave that to the cache"
    )


def _narrow_pages(model: ModelConfig, constraints: Constraints, candidate: Candidate) -> str:
    """Return the note on what pages of FP8 save."""
    dtype, shape = constraints.dtype or model.dtype, candidate.shape
    whole = kv_bytes_per_token(model, dtype, constraints.tensor_parallel)
    return (
        f"pages in {FP8_PAGES}: {shape.kv:,} bytes of keys, values and scales for each token instead of "
        f"{whole:,} in {dtype}, so that the same memory holds {whole / shape.kv:.2f} times the tokens"
    )
