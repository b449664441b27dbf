"""`best_alternative`: the choice that would serve other traffic better than the current one. Pure."""

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
    """A choice that is better than the current one."""

    strategy: Strategy
    state_dtype: StateDtype
    gain: float
    """Expected throughput divided by that of the current choice, minus one; infinite if that cannot run."""


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
        traffic: the traffic both choices are valued under.
        strategy: the current strategy.
        state_dtype: the current state dtype.
        state_dtypes: those to choose among, within the settings. With the current one alone, a running engine
            can apply the result.

    Raises:
        InsufficientMemory: the budget does not hold the weights.
        UnusableInput: an input cannot be planned with.
    """
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
