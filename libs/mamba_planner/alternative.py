"""`best_alternative`: the choice that would serve other traffic better than the one in force. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from mamba_api.choices import Strategy
from mamba_planner.candidates import STATE_DTYPES, evaluate
from mamba_planner.choice import choose
from mamba_planner.constraints import Constraints, StateDtype, Workload
from mamba_planner.memory import Device, MemoryBudget
from mamba_planner.model_config import ModelConfig
from mamba_planner.strategy import MOST_ROBUST_FIRST
from mamba_settings.engine_settings import EngineSettings


@dataclass(frozen=True, slots=True)
class Alternative:
    """A choice that is better than the one in force."""

    strategy: Strategy
    state_dtype: StateDtype
    gain: float
    """Expected throughput by that of the choice in force, less one; infinite where that cannot run at all."""


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
    """What the planner would choose for `traffic`; None where that is the choice in force, or nothing fits.

    Args:
        model, settings, device, weights_bytes: as for `plan_engine`; the strategy of the settings is not
            looked at, and their workload neither.
        traffic: what both are valued under.
        strategy: in force.
        state_dtype: in force.
        state_dtypes: to choose among, as far as the settings allow: with the one in force alone, what comes
            out can be told to a running engine.

    Raises:
        InsufficientMemory: the budget does not hold the weights.
        UnusableInput: an input cannot be planned with.
    """
    constraints = replace(Constraints.of(settings), strategy=None)
    budget = MemoryBudget.of(model, constraints, device, weights_bytes, None)
    allowed = [one for one in state_dtypes if constraints.state_dtype in (None, one)]
    candidates = [
        evaluate(model, constraints, budget, traffic, each, dtype)
        for dtype in allowed
        for each in MOST_ROBUST_FIRST
    ]
    if all(each.misfit for each in candidates):
        return None
    hint = model.state_dtype_hint if constraints.state_dtype is None else None
    best = choose(candidates, constraints, traffic, hint)
    if (best.strategy, best.state_dtype) == (strategy, state_dtype):
        return None
    now = evaluate(model, constraints, budget, traffic, strategy, state_dtype)
    gain = best.score / now.score - 1 if now.score > 0 else float("inf")
    return Alternative(best.strategy, best.state_dtype, gain)
