"""`plan_engine`: the plan of an engine's settings, with the next GPU sizes, or what would make it fit.

The engine, the operator and the command line call it; `plan`, which it calls, decides. Pure.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from mamba_api.choices import FP8_PAGES, Role, Strategy
from mamba_planner.arithmetic import DTYPE_BYTES, kv_bytes_per_token
from mamba_planner.candidates import STATE_DTYPES, Candidate, evaluate
from mamba_planner.cards.gpu_sizes import SIZES, one_size_down, one_size_up, sizes_up
from mamba_planner.choice import choose, enough_in_full_precision
from mamba_planner.constraints import Constraints, StateDtype, Workload
from mamba_planner.draft_heads import auto_uses_head, planned_model, without_drafts
from mamba_planner.errors import FittingSize, InsufficientMemory, UnusableInput
from mamba_planner.memory import Device, MemoryBudget
from mamba_planner.memory_plan import MemoryPlan, OtherSize
from mamba_planner.model_config import ModelConfig
from mamba_planner.planner import does_not_fit, plan, state_hint
from mamba_planner.remedies import ways_to_fit
from mamba_planner.strategy import MOST_ROBUST_FIRST
from mamba_settings.engine_settings import EngineSettings

HEAD_LEFT_OUT = (
    "the model's own head for drafts does not fit and is left out: speculation auto looks drafts up in the "
    "text of each sequence"
)
"""Note of a plan for speculation auto without the head that the model has."""
PlannedDtype = Callable[[Role, StateDtype | None], StateDtype | None]
"""Function that plans the engines of a pool and returns their type of states; None if nothing fits. Its
second argument fixes the type; None = the planner's choice."""


def plan_engine(
    model: ModelConfig,
    settings: EngineSettings,
    device: Device,
    weights_bytes: int | None = None,
    workspace: int | None = None,
    workload: Workload | None = None,
) -> MemoryPlan:
    """Return the plan of an engine with these settings: the plan that is shown is the one that runs.

    The plan includes what the next larger and smaller GPU size would change.

    Args:
        model: the model.
        settings: the engine's settings.
        device: the device and its memory.
        weights_bytes: true bytes of the weights on one device; None = by parameter count.
        workspace: measured bytes of the largest step; None = by arithmetic.
        workload: traffic to plan for instead of the declared traffic; None = the declared traffic.

    Raises:
        InsufficientMemory: nothing fits; the message names the changes and the smallest GPU that would fit.
        UnusableInput: an input cannot be planned with.
    """
    settings = settings.for_device(device.kind)
    model, weights_bytes = affordable_model(model, settings, weights_bytes, device)
    constraints, traffic = Constraints.of(settings), workload or Workload.of(settings)

    if constraints.ring_tokens and not (model.mamba or model.gated_delta):
        raise UnusableInput(
            f"state_replay {constraints.ring_tokens} is refused for this model: its layers have no recurrent "
            "states but windows of a few tokens; set it to auto or off"
        )

    _check_pages(model, constraints)

    def other_size(memory: int) -> OtherSize:
        other = device.resized(memory)
        try:
            return _on_other_size(model, constraints, other, weights_bytes, traffic, workspace)
        except InsufficientMemory as error:
            return OtherSize(memory, None, error.message)

    # Without a GPU there is none to exchange; an arena in bytes is the same on every GPU.
    exchangeable = device.kind != "cpu" and constraints.arena_bytes is None
    try:
        memory_plan = plan(model, constraints, device, weights_bytes, traffic, workspace)
    except InsufficientMemory as error:
        ways = (
            *_no_drafts(model, settings, device, weights_bytes, traffic),
            *ways_to_fit(model, constraints, device, weights_bytes, traffic, error),
        )
        if not exchangeable:
            raise error.with_remedies(ways, None) from None
        fitting = (size for size in sizes_up(device.memory) if other_size(size).chosen is not None)
        raise error.with_remedies(ways, FittingSize(next(fitting, None), SIZES[-1])) from None
    head_is_wanted = settings.speculation == "auto" and auto_uses_head(model, settings, device.kind)
    if head_is_wanted and not model.draft_head:
        memory_plan = replace(memory_plan, notes=(*memory_plan.notes, HEAD_LEFT_OUT))
    if not exchangeable:
        return memory_plan
    down, up = one_size_down(device.memory), one_size_up(device.memory)
    return replace(
        memory_plan,
        one_size_down=None if down is None else other_size(down),
        one_size_up=None if up is None else other_size(up),
    )


def affordable_model(
    model: ModelConfig, settings: EngineSettings, weights_bytes: int | None, device: Device
) -> tuple[ModelConfig, int | None]:
    """Return the model as an engine with these settings runs it, and the bytes of its weights.

    With speculation auto, the model's own head is left out if an engine with the head does not fit: an engine
    that fits without the head must not fail because of a default. The bytes are None if they are not known.
    Raises UnusableInput as `plan_engine`.

    Args:
        model: the model; with its head if it is known that the engine has the head.
        settings: the engine's settings, resolved for the device.
        weights_bytes: true bytes of the weights on one device; None = by parameter count.
        device: the device and its memory.
    """
    planned, planned_bytes = planned_model(model, settings, weights_bytes, device.kind)
    if settings.speculation != "auto" or planned.draft_head == model.draft_head:
        return planned, planned_bytes
    try:
        plan(planned, Constraints.of(settings), device, planned_bytes, Workload.of(settings))
    except InsufficientMemory:
        return without_drafts(planned, settings, planned_bytes)
    return planned, planned_bytes


def _no_drafts(
    model: ModelConfig,
    settings: EngineSettings,
    device: Device,
    weights_bytes: int | None,
    traffic: Workload,
) -> tuple[str, ...]:
    """Return the remedy "speculation off" if the engine would fit without its head or its draft model.

    The result is empty if the engine has neither of them, or does not fit without them either. The parameters
    are those with which `plan` raised InsufficientMemory.
    """
    if not model.draft_head and model.draft_model is None:
        return ()
    plain, size = without_drafts(model, settings, weights_bytes)
    silent = Constraints.of(settings.model_copy(update={"speculation": "off"}))
    try:
        plan(plain, silent, device, size, traffic)
    except InsufficientMemory:
        return ()
    return ("speculation off",)


def _check_pages(model: ModelConfig, constraints: Constraints) -> None:
    """Raise UnusableInput if pages of FP8 would have no keys, or would misalign the bytes behind them."""
    if constraints.kv_cache_dtype != FP8_PAGES:
        return
    if model.attention is None:
        raise UnusableInput(
            f"kv_cache_dtype {FP8_PAGES} is refused for this model, which has no attention and so no pages: "
            "set it to auto"
        )
    dtype = constraints.dtype or model.dtype
    keys = constraints.page_size * kv_bytes_per_token(model, dtype, kv_cache_dtype=FP8_PAGES)
    if keys % max(DTYPE_BYTES["float32"], DTYPE_BYTES[dtype]):
        raise UnusableInput(
            f"kv_cache_dtype {FP8_PAGES} is refused with pages of {constraints.page_size} tokens of this "
            f"model, which have {keys:,} bytes: set page_size to a multiple of 4"
        )


def _on_other_size(
    model: ModelConfig,
    constraints: Constraints,
    device: Device,
    weights_bytes: int | None,
    traffic: Workload,
    workspace: int | None,
) -> OtherSize:
    """Return the planner's choice on `device`, without its reasons.

    16-bit states are evaluated only if 32-bit states do not suffice. `weights_bytes` and `workspace` are as
    in `plan_engine`; `traffic` is the workload. Raises InsufficientMemory if nothing fits.
    """
    budget = MemoryBudget.of(model, constraints, device, weights_bytes, workspace)
    candidates: list[Candidate] = []
    for state_dtype in STATE_DTYPES:
        allowed = constraints.state_dtype in (None, state_dtype)
        if allowed and not enough_in_full_precision(candidates, traffic):
            candidates += [
                evaluate(model, constraints, budget, traffic, strategy, state_dtype)
                for strategy in MOST_ROBUST_FIRST
                if constraints.strategy in (None, strategy)
            ]
    if all(candidate.misfit for candidate in candidates):
        raise does_not_fit(min(candidates, key=lambda candidate: candidate.need), budget)
    return OtherSize(device.memory, choose(candidates, constraints, traffic, state_hint(model, constraints)))


def pool_state_dtype(planned: PlannedDtype) -> StateDtype | None:
    """Return the type of states for both pools: a state has one type in the engines that hand it over.

    It is the type of the decode pool's plan, unless only 16-bit states fit the other pool. The result is None
    if the decode pool does not fit with any type.
    """
    decode = planned("decode", None)
    if decode != "float32" or planned("prefill", "float32") is not None:
        return decode
    both = all(planned(role, "float16") is not None for role in ("prefill", "decode"))
    return "float16" if both else decode


@dataclass(frozen=True, slots=True)
class Alternative:
    """A choice that would be better than the current one, to be shown to the user."""

    strategy: Strategy
    state_dtype: StateDtype
    gain: float
    """Expected throughput divided by the throughput of the current choice, minus one; infinite if that cannot
    run."""


def best_alternative(
    model: ModelConfig,
    settings: EngineSettings,
    device: Device,
    weights_bytes: int | None,
    traffic: Workload,
    strategy: Strategy,
    state_dtype: StateDtype,
    *,
    state_dtypes: Iterable[StateDtype] = STATE_DTYPES,
) -> Alternative | None:
    """Return the planner's choice for `traffic`; None if it is the current one, or if nothing fits.

    Args:
        model: the model.
        settings: the engine's settings, of which strategy and workload are ignored.
        device: the device and its memory.
        weights_bytes: true bytes of the weights on one device; None = by parameter count.
        traffic: the traffic that both choices are valued under.
        strategy: the current strategy.
        state_dtype: the current state dtype.
        state_dtypes: types of states to choose among, within the settings. A running engine can apply the
            result if only the current type is given.

    Raises:
        InsufficientMemory: the budget does not hold the weights.
        UnusableInput: an input cannot be planned with.
    """
    settings = settings.for_device(device.kind)
    model, weights_bytes = affordable_model(model, settings, weights_bytes, device)
    constraints = replace(Constraints.of(settings), strategy=None)
    budget = MemoryBudget.of(model, constraints, device, weights_bytes, None)
    dtypes = [dtype for dtype in state_dtypes if constraints.state_dtype in (None, dtype)]
    candidates = [
        evaluate(model, constraints, budget, traffic, name, dtype)
        for dtype in dtypes
        for name in MOST_ROBUST_FIRST
    ]
    if all(candidate.misfit for candidate in candidates):
        return None
    hint = model.state_dtype_hint if constraints.state_dtype is None else None
    best = choose(candidates, constraints, traffic, hint)
    if (best.strategy, best.state_dtype) == (strategy, state_dtype):
        return None
    current = evaluate(model, constraints, budget, traffic, strategy, state_dtype)
    gain = best.score / current.score - 1 if current.score > 0 else float("inf")
    return Alternative(best.strategy, best.state_dtype, gain)
