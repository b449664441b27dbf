"""`plan`: strategy, state dtype, concurrency and arena of one engine from its model and its memory. Pure.

The engine sizes its arena with it, the operator writes it into the status and the command line shows it: one
computation, so that the plan shown is the plan that runs.
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
        constraints: the fixed values; `Constraints.of(settings)` for an engine.
        device: the device and its memory; ignored if `constraints.arena_bytes` is set.
        weights_bytes: true bytes of the weights on one device; None = by parameter count.
        workload: declared or measured traffic; None = a cautious assumption.
        workspace: measured bytes of the largest step; None = by arithmetic.

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
        candidate
        for candidate in candidates
        if constraints.strategy in (None, candidate.strategy)
        and constraints.state_dtype in (None, candidate.state_dtype)
    ]
    if all(candidate.misfit for candidate in allowed):
        raise does_not_fit(min(allowed, key=lambda candidate: candidate.need), budget)
    hint = state_hint(model, constraints)
    chosen = choose(allowed, constraints, traffic, hint)
    reason = why(chosen, allowed, constraints, traffic)
    rejected = reject(candidates, chosen, constraints, traffic, hint)
    return _plan(model, constraints, budget, traffic, chosen, reason, rejected)


def state_hint(model: ModelConfig, constraints: Constraints) -> str | None:
    """Return the state dtype that the model requires, unless the settings fix one."""
    return model.state_dtype_hint if constraints.state_dtype is None else None


def does_not_fit(closest: Candidate, budget: MemoryBudget) -> InsufficientMemory:
    """Return the error for the choice that needs the least memory."""
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
        budget_bytes=budget.total,
        ledger=ledger,
        rejected=rejected,
        notes=_notes(model, constraints, budget, traffic, candidate),
    )


_RUNNING_ITEMS = (
    "weights",
    "workspace",
    "padding slab",
    "slots of running sequences",
    "pages of running sequences",
)


def _ledger(candidate: Candidate, budget: MemoryBudget) -> tuple[LedgerLine, ...]:
    slab = candidate.shape.slab
    tokens = candidate.workload.tokens
    live = candidate.planned * candidate.slots_each
    running = candidate.shape.slabs(candidate.planned, candidate.slots_each, tokens)
    cached = candidate.shape.slabs(candidate.cached_paths, CHECKPOINTS_PER_PATH, tokens)
    lines = [
        LedgerLine("weights", budget.weights),
        LedgerLine("workspace", budget.workspace),
        LedgerLine("padding slab", slab),
        LedgerLine("slots of running sequences", live * slab),
        LedgerLine("pages of running sequences", (running - live) * slab),
        LedgerLine("slots of checkpoints", candidate.checkpoints * slab),
        LedgerLine("pages of checkpoints", (cached - candidate.checkpoints) * slab),
        LedgerLine("free slabs", (candidate.slabs - 1 - running - cached) * slab),
    ]
    lines.append(LedgerLine(OUTSIDE, budget.total - sum(line.bytes for line in lines)))
    return tuple(lines)


def _binding(candidate: Candidate, constraints: Constraints) -> str:
    if candidate.running < candidate.fits:
        return "configured limit" if constraints.max_running_requests else "default limit"
    if candidate.running <= 1:
        return "memory"
    live = candidate.running * candidate.slots_each
    pages = candidate.shape.slabs(candidate.running, candidate.slots_each, candidate.workload.tokens) - live
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
    return tuple(notes)
