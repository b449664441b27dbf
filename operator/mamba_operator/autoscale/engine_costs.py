"""What requests cost an engine: seconds of its device per second, from what engines measured. Pure.

A prompt token costs 1 / speed. A generated token costs what one more sequence adds to a step: the rest
of a step is paid once, however many sequences and prompts share it, and bounds the time per token from below.
"""

import msgspec

from mamba_operator.autoscale.config import AutoscalerConfig
from mamba_operator.autoscale.memory import AutoscalerMemory, StepFit
from mamba_operator.autoscale.observation import EngineLoad

STEP_MEMORY = 0.98
"""Weight of what was known of steps, at each look."""
LEARNING = 0.1
"""Weight of one look at saturated engines."""
EFFICIENCY = (0.3, 1.25)
"""What the efficiency may be."""
UNSEEN_SLOPE = 0.3
"""Share of a step that grows with its batch, before steps of different batches were seen."""


class EngineCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one engine's device for each kind of work."""

    prompt_token: float
    """Seconds of device per prompt token; 0 = not known."""
    output_token: float
    """Seconds per generated token; 0 = not known."""
    step: float
    """Seconds of a step with nothing in it; 0 = not known."""
    capacity: float
    """Seconds of such work that one engine does in a second."""

    def prefill(self, load: EngineLoad) -> float:
        """Seconds of prompts per second that came."""
        return max(load.prompt_rate - load.cached_rate, 0.0) * self.prompt_token

    def decode(self, load: EngineLoad) -> float:
        """Seconds of generation per second."""
        return load.output_rate * self.output_token

    def usable(self, config: AutoscalerConfig, use: float, prompts: float) -> float:
        """Share of an engine that may be used, so that `use` and the target per token are kept.

        `prompts` is the share of the work that is prompts: steps wait for those, not for one another.
        """
        if config.tpot_target is None or self.step <= 0 or prompts <= 0:
            return use
        # A token takes step / (1 - use by prompts) on average.
        return max(min(use, (1.0 - self.step / config.tpot_target) / prompts), 0.1)


def engine_costs(memory: AutoscalerMemory, load: EngineLoad | None) -> EngineCosts:
    """What is known of an engine; before its speed was learned, what this look says of it."""
    speed = memory.speed or (load.prefill_speed if load else 0.0)
    step, slope = _line(memory.step)
    return EngineCosts(
        prompt_token=1.0 / speed if speed > 0 else 0.0,
        output_token=slope,
        step=step,
        capacity=memory.efficiency,
    )


def learn_step(fit: StepFit, load: EngineLoad | None) -> StepFit:
    """With one look more at how long steps take."""
    if load is None or load.decode_step <= 0 or load.running <= 0 or load.engines <= 0:
        return fit
    x, y, keep = load.running / load.engines, load.decode_step, STEP_MEMORY
    return StepFit(
        n=fit.n * keep + 1,
        x=fit.x * keep + x,
        y=fit.y * keep + y,
        xx=fit.xx * keep + x * x,
        xy=fit.xy * keep + x * y,
    )


def learn_efficiency(memory: AutoscalerMemory, load: EngineLoad | None, costs: EngineCosts) -> float:
    """What engines do that never lack work, by what they should do."""
    if load is None or not load.saturated:
        return memory.efficiency
    done = load.saturated_prompt_rate * costs.prompt_token + load.saturated_output_rate * costs.output_token
    if done <= 0:
        return memory.efficiency
    least, most = EFFICIENCY
    seen = min(max(done / load.saturated, least), most)
    return memory.efficiency + LEARNING * (seen - memory.efficiency)


def _line(fit: StepFit) -> tuple[float, float]:
    """(seconds of an empty step, seconds per sequence); zeros when no step was seen."""
    if fit.n <= 0:
        return 0.0, 0.0
    x, y = fit.x / fit.n, fit.y / fit.n
    spread = fit.xx / fit.n - x * x
    guess = UNSEEN_SLOPE * y / max(x, 1.0)
    if spread > (0.1 * x) ** 2:
        # No fit of noise: an empty step takes something, and a sequence costs something.
        guess = min(max((fit.xy / fit.n - x * y) / spread, 0.02 * y / max(x, 1.0)), y / max(x, 1.0))
    return max(y - guess * x, 0.05 * y), guess
