"""`plan`: strategy, state dtype, concurrency and arena of one engine from its model and its memory. Pure.

The engine sizes its arena with it, the operator writes it into the status, the command line shows it: one
arithmetic, so what is shown is what runs.
"""

from mamba_planner.candidates import (
    CHECKPOINTS_PER_PATH,
    STATE_DTYPES,
    Candidate,
    evaluate,
)
from mamba_planner.choice import choose, reject, why
from mamba_planner.constraints import Constraints, Workload
from mamba_planner.errors import InsufficientMemory
from mamba_planner.memory import CPU_ARENA_PART, MOST_RUNNING, Device, MemoryBudget
from mamba_planner.memory_plan import OUTSIDE, LedgerLine, MemoryPlan, RejectedCandidate
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
        constraints: what is fixed; `Constraints.of(settings)` for an engine.
        device: its memory; not looked at when `constraints.arena_bytes` is given.
        weights_bytes: true bytes of the weights on one device; None = by parameter count.
        workload: declared or measured traffic; None = a cautious assumption.
        workspace: bytes that the worst step was seen to take; None = by arithmetic.

    Raises:
        InsufficientMemory: weights, workspace and one sequence need more than the budget.
        UnusableInput: an input cannot be planned with, such as tensor parallelism that does not divide.
    """
    traffic = workload or Workload()
    budget = MemoryBudget.of(model, constraints, device, weights_bytes, workspace)
    candidates = [
        evaluate(model, constraints, budget, traffic, strategy, state_dtype)
        for state_dtype in STATE_DTYPES
        for strategy in MOST_ROBUST_FIRST
    ]
    allowed = [
        each
        for each in candidates
        if constraints.strategy in (None, each.strategy)
        and constraints.state_dtype in (None, each.state_dtype)
    ]
    if all(each.misfit for each in allowed):
        raise does_not_fit(min(allowed, key=lambda each: each.need), budget)
    hint = state_hint(model, constraints)
    chosen = choose(allowed, constraints, traffic, hint)
    reason = why(chosen, allowed, constraints, traffic)
    rejected = reject(candidates, chosen, constraints, traffic, hint)
    return _plan(model, constraints, budget, traffic, chosen, reason, rejected)


def state_hint(model: ModelConfig, constraints: Constraints) -> str | None:
    """Return the state dtype that the model asks for, where nobody fixed another one."""
    return model.state_dtype_hint if constraints.state_dtype is None else None


def does_not_fit(closest: Candidate, budget: MemoryBudget) -> InsufficientMemory:
    """Return the refusal of the choice that needs the least."""
    need = budget.weights + budget.workspace + closest.need
    return InsufficientMemory(
        f"weights {binary_size(budget.weights)}, workspace {binary_size(budget.workspace)} and one sequence "
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
    each: Candidate,
    reason: str,
    rejected: tuple[RejectedCandidate, ...],
) -> MemoryPlan:
    shape = each.shape
    ledger = _ledger(each, budget)
    return MemoryPlan(
        strategy=each.strategy,
        state_dtype=each.state_dtype,
        reason=reason,
        arena_bytes=each.slabs * shape.slab,
        slab_bytes=shape.slab,
        slabs=each.slabs,
        page_size=shape.page_size,
        page_bytes=shape.page,
        pages_per_slab=shape.pages_per_slab,
        state_bytes=shape.state,
        kv_bytes_per_token=shape.kv,
        slots=each.slots,
        pages=each.pages,
        slots_per_sequence=each.slots_each,
        overlap=constraints.overlaps(budget.device.kind),
        max_running_requests=each.running,
        planned_running=each.planned,
        max_model_len=each.max_model_len,
        checkpoints=each.checkpoints,
        binding_constraint=_binding(each, constraints),
        headroom_bytes=budget.total - sum(line.bytes for line in ledger if line.item in _RUNNING_ITEMS),
        expected_saved=each.saved,
        workload=each.workload,
        weights_bytes=budget.weights,
        budget_bytes=budget.total,
        ledger=ledger,
        rejected=rejected,
        notes=_notes(model, constraints, budget, traffic, each),
    )


_RUNNING_ITEMS = (
    "weights",
    "workspace",
    "padding slab",
    "slots of running sequences",
    "pages of running sequences",
)


def _ledger(each: Candidate, budget: MemoryBudget) -> tuple[LedgerLine, ...]:
    slab = each.shape.slab
    tokens = each.workload.tokens
    live = each.planned * each.slots_each
    running = each.shape.slabs(each.planned, each.slots_each, tokens)
    cached = each.shape.slabs(each.cached_paths, CHECKPOINTS_PER_PATH, tokens)
    lines = [
        LedgerLine("weights", budget.weights),
        LedgerLine("workspace", budget.workspace),
        LedgerLine("padding slab", slab),
        LedgerLine("slots of running sequences", live * slab),
        LedgerLine("pages of running sequences", (running - live) * slab),
        LedgerLine("slots of checkpoints", each.checkpoints * slab),
        LedgerLine("pages of checkpoints", (cached - each.checkpoints) * slab),
        LedgerLine("free slabs", (each.slabs - 1 - running - cached) * slab),
    ]
    lines.append(LedgerLine(OUTSIDE, budget.total - sum(line.bytes for line in lines)))
    return tuple(lines)


def _binding(each: Candidate, constraints: Constraints) -> str:
    if each.running < each.fits:
        return "configured limit" if constraints.max_running_requests else "default limit"
    if each.running <= 1:
        return "memory"
    live = each.running * each.slots_each
    pages = each.shape.slabs(each.running, each.slots_each, each.workload.tokens) - live
    return "state slots" if live >= pages else "kv pages"


def _notes(
    model: ModelConfig, constraints: Constraints, budget: MemoryBudget, traffic: Workload, each: Candidate
) -> tuple[str, ...]:
    notes = []
    if not each.workload.declared:
        notes.append(
            f"no workload declared: assumed prompts of {each.workload.prompt_tokens:,} and outputs of "
            f"{each.workload.output_tokens:,} tokens, {each.workload.shared_prefix_ratio:.0%} of it shared"
        )
    elif each.workload.tokens < traffic.tokens:
        notes.append(
            f"the {traffic.origin} workload of {traffic.lengths} tokens is longer than the "
            f"{each.max_model_len:,} of a sequence: planned for {each.workload.lengths}"
        )
    if (traffic.concurrency or 0) > each.running:
        notes.append(
            f"the {traffic.origin} concurrency of {traffic.concurrency:,} is not met: {each.running:,} run"
        )
    if (constraints.max_model_len or 0) > model.max_position:
        notes.append(
            f"the model was made for {model.max_position:,} tokens, and {constraints.max_model_len:,} are "
            "allowed: beyond its own limit answers may get worse"
        )
    if constraints.max_model_len is None and each.max_model_len < model.max_position:
        notes.append(
            f"the model's limit of {model.max_position:,} tokens does not fit: lowered to "
            f"{each.max_model_len:,}"
        )
    if constraints.max_running_requests is None and each.running < each.fits:
        notes.append(
            f"kept to {MOST_RUNNING[budget.device.kind]:,} running sequences; set maxRunningRequests for more"
        )
    if budget.arena_limited and each.slabs * each.shape.slab < budget.arena:
        taken = each.slabs * each.shape.slab
        reached = taken + each.shape.slab > budget.arena // CPU_ARENA_PART
        why = "a quarter" if reached else f"all that {each.running:,} sequences and their cache can use"
        notes.append(
            f"arena kept to {binary_size(taken)} of {binary_size(budget.arena)} free memory, {why}; set the "
            "arena size for more"
        )
    return tuple(notes)
