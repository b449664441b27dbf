"""Cost of requests for an engine: seconds of its device, from measurements of engines. Pure.

A prompt token costs 1 / speed. A generated token costs the time that one more sequence adds to a step. The
rest of a step is paid once, regardless of the sequences and prompts that share it, and is the minimum time
per token.
"""

import msgspec

from mamba_operator.autoscale.config import AutoscalerConfig
from mamba_operator.autoscale.memory import AutoscalerMemory, StepFit
from mamba_operator.autoscale.observation import EngineLoad

STEP_DECAY = 0.98
"""Factor by which the weight of earlier steps falls with each observation."""
EFFICIENCY_WEIGHT = 0.1
"""Weight of one observation of saturated engines."""
EFFICIENCY_RANGE = (0.3, 1.25)
"""Smallest and largest efficiency."""
UNSEEN_SLOPE = 0.3
"""Assumed share of a step that grows with its batch, before steps of different batches were observed."""


class EngineCosts(msgspec.Struct, frozen=True, kw_only=True):
    """The seconds of an engine's device that each kind of work takes, as learned from measurements."""

    prompt_token: float
    """Device seconds per prompt token; 0 = unknown."""
    output_token: float
    """Device seconds per generated token; 0 = unknown."""
    step: float
    """Seconds of a step without any sequences; 0 = unknown."""
    capacity: float
    """Seconds of work, at these costs, that one engine completes per second: 1 if the costs are exact."""

    def prefill(self, load: EngineLoad) -> float:
        """Return the work of arriving prompts, in device seconds per second."""
        return max(load.prompt_rate - load.cached_rate, 0.0) * self.prompt_token

    def decode(self, load: EngineLoad) -> float:
        """Return the work of generation, in device seconds per second."""
        return load.output_rate * self.output_token

    def usable(self, config: AutoscalerConfig, use: float, prompts: float) -> float:
        """Return the share of an engine that may be used: `use`, or less if the target per token requires it.

        `prompts` is the share of prompts in the work: steps wait for prompts, not for one another.
        """
        if config.tpot_target is None or self.step <= 0 or prompts <= 0:
            return use
        # A token takes step / (1 - use by prompts) on average.
        return max(min(use, (1.0 - self.step / config.tpot_target) / prompts), 0.1)


def engine_costs(memory: AutoscalerMemory, load: EngineLoad | None) -> EngineCosts:
    """Return the learned costs of an engine; before a speed was learned, by its current speed."""
    speed = memory.speed or (load.prefill_speed if load else 0.0)
    step, slope = _line(memory.step)
    return EngineCosts(
        prompt_token=1.0 / speed if speed > 0 else 0.0,
        output_token=slope,
        step=step,
        capacity=memory.efficiency,
    )


def learn_step(fit: StepFit, load: EngineLoad | None) -> StepFit:
    """Return the fit of step times `fit` with the observation `load` added."""
    if load is None or load.decode_step <= 0 or load.running <= 0 or load.engines <= 0:
        return fit
    x, y, keep = load.running / load.engines, load.decode_step, STEP_DECAY
    return StepFit(
        n=fit.n * keep + 1,
        x=fit.x * keep + x,
        y=fit.y * keep + y,
        xx=fit.xx * keep + x * x,
        xy=fit.xy * keep + x * y,
    )


def learn_efficiency(memory: AutoscalerMemory, load: EngineLoad | None, costs: EngineCosts) -> float:
    """Return the ratio of saturated engines' work to their expected work, after one more observation."""
    if load is None or not load.saturated:
        return memory.efficiency
    done = load.saturated_prompt_rate * costs.prompt_token + load.saturated_output_rate * costs.output_token
    if done <= 0:
        return memory.efficiency
    least, most = EFFICIENCY_RANGE
    observed = min(max(done / load.saturated, least), most)
    return memory.efficiency + EFFICIENCY_WEIGHT * (observed - memory.efficiency)


def _line(fit: StepFit) -> tuple[float, float]:
    """Return (seconds of an empty step, seconds per sequence); zeros when no step was observed."""
    if fit.n <= 0:
        return 0.0, 0.0
    x, y = fit.x / fit.n, fit.y / fit.n
    spread = fit.xx / fit.n - x * x
    guess = UNSEEN_SLOPE * y / max(x, 1.0)
    if spread > (0.1 * x) ** 2:
        # Bounds against noise: an empty step takes time, and a sequence adds time.
        guess = min(max((fit.xy / fit.n - x * y) / spread, 0.02 * y / max(x, 1.0)), y / max(x, 1.0))
    return max(y - guess * x, 0.05 * y), guess
