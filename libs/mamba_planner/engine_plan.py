"""`plan_engine`: the plan of an engine's settings, with the next GPU sizes, or what would make it fit. Pure.

The engine, the operator and the command line call it; `plan` below it decides.
"""

from dataclasses import replace

from mamba_planner.candidates import STATE_DTYPES, Candidate, evaluate
from mamba_planner.choice import choose, enough_in_full_precision
from mamba_planner.constraints import Constraints, Workload
from mamba_planner.errors import FittingSize, InsufficientMemory
from mamba_planner.gpu_sizes import SIZES, one_size_down, one_size_up, sizes_up
from mamba_planner.memory import Device, MemoryBudget
from mamba_planner.memory_plan import MemoryPlan, OtherSize
from mamba_planner.model_config import ModelConfig
from mamba_planner.planner import does_not_fit, plan, state_hint
from mamba_planner.remedies import ways_to_fit
from mamba_planner.strategy import MOST_ROBUST_FIRST
from mamba_settings.engine_settings import EngineSettings


def plan_engine(
    model: ModelConfig,
    settings: EngineSettings,
    device: Device,
    weights_bytes: int | None = None,
    workspace: int | None = None,
    workload: Workload | None = None,
) -> MemoryPlan:
    """The plan of an engine with these settings: what is shown before, and what the engine does.

    With what one GPU size up and down would change. `workload`: in place of what the settings declare. Raises
    as `plan`, and `InsufficientMemory` with the changes and the smallest size that would do.
    """
    constraints, traffic = Constraints.of(settings), workload or Workload.of(settings)

    def on(memory: int) -> OtherSize:
        other = device.resized(memory)
        try:
            return _on_other_size(model, constraints, other, weights_bytes, traffic, workspace)
        except InsufficientMemory as error:
            return OtherSize(memory, None, error.message)

    # Without a GPU there is none to exchange; an arena in bytes stays on every GPU.
    exchangeable = device.kind != "cpu" and constraints.arena_bytes is None
    try:
        planned = plan(model, constraints, device, weights_bytes, traffic, workspace)
    except InsufficientMemory as error:
        ways = ways_to_fit(model, constraints, device, weights_bytes, traffic, error)
        if not exchangeable:
            raise error.with_remedies(ways, None) from None
        fitting = (size for size in sizes_up(device.memory) if on(size).chosen is not None)
        raise error.with_remedies(ways, FittingSize(next(fitting, None), SIZES[-1])) from None
    if not exchangeable:
        return planned
    down, up = one_size_down(device.memory), one_size_up(device.memory)
    return replace(
        planned,
        one_size_down=None if down is None else on(down),
        one_size_up=None if up is None else on(up),
    )


def _on_other_size(
    model: ModelConfig,
    constraints: Constraints,
    device: Device,
    weights_bytes: int | None,
    traffic: Workload,
    workspace: int | None,
) -> OtherSize:
    """What `plan` would choose there, without its reasons: 16-bit states are tried only where they count."""
    budget = MemoryBudget.of(model, constraints, device, weights_bytes, workspace)
    allowed: list[Candidate] = []
    for state_dtype in STATE_DTYPES:
        if constraints.state_dtype in (None, state_dtype) and not enough_in_full_precision(allowed, traffic):
            allowed += [
                evaluate(model, constraints, budget, traffic, strategy, state_dtype)
                for strategy in MOST_ROBUST_FIRST
                if constraints.strategy in (None, strategy)
            ]
    if all(each.misfit for each in allowed):
        raise does_not_fit(min(allowed, key=lambda each: each.need), budget)
    return OtherSize(device.memory, choose(allowed, constraints, traffic, state_hint(model, constraints)))
