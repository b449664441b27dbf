"""What a look teaches: speed, costs, how full engines can be, if virtual fleets tell the truth. Pure."""

import math

import msgspec

from mamba_operator.autoscale.config import Config
from mamba_operator.autoscale.demand import Demand, waiting_requests
from mamba_operator.autoscale.memory import Memory
from mamba_operator.autoscale.observation import Load, Observation
from mamba_operator.autoscale.virtual_fleets import Arrivals, advance, served, sizes
from mamba_operator.autoscale.work import Costs, learn_efficiency, learn_step

SPEED = 0.2
"""Weight of one look at how fast prompts are computed."""
CORRECTION = (0.5, 3.0)
"""What the correction may be."""
GAIN = 0.5
"""How far the correction moves for a difference of all requests, each minute."""


def learned(
    memory: Memory, seen: Observation, config: Config, costs: Costs, asks: Demand, passed: float
) -> Memory:
    """The memory with one look more; times and recommendations are the caller's."""
    load = seen.load
    memory = msgspec.structs.replace(memory, work_fast=asks.work_fast, work_slow=asks.work_slow)
    if load is None:
        return memory
    speed = memory.speed
    if load.prefill_speed > 0:
        speed = load.prefill_speed if speed <= 0 else speed + SPEED * (load.prefill_speed - speed)
    came = _arrivals(memory, seen, costs, load, passed)
    memory = _corrected(memory, seen, config, costs, came, load)
    past = advance(memory, config, costs, came)
    return msgspec.structs.replace(
        memory,
        speed=speed,
        step=learn_step(memory.step, load),
        efficiency=learn_efficiency(memory, load, costs),
        prompt_tokens=_prompt(memory, load),
        backlog=past.backlog,
        met=past.met,
        came=past.came,
    )


def _prompt(memory: Memory, load: Load) -> float:
    """Mean of tokens to compute per request."""
    if load.arrivals <= 0:
        return memory.prompt_tokens
    mean = max(load.prompt_rate - load.cached_rate, 0.0) / load.arrivals
    return mean if memory.prompt_tokens <= 0 else memory.prompt_tokens + 0.1 * (mean - memory.prompt_tokens)


def _arrivals(memory: Memory, seen: Observation, costs: Costs, load: Load, passed: float) -> Arrivals:
    """What came since the last look, at what the correction says it costs."""
    prompt = _prompt(memory, load) * costs.prompt_token
    prefill = costs.prefill(load)
    if load.engines:
        # Requests that no engine has yet are not in what engines count.
        prefill += waiting_requests(seen.traffic) * prompt / max(passed, 1.0) if not load.arrivals else 0.0
    requests = max(load.arrivals, seen.traffic.arrivals if seen.traffic is not None else 0.0)
    return Arrivals(
        seconds=passed,
        requests=requests,
        prefill=prefill * memory.correction,
        decode=costs.decode(load) * memory.correction,
        prompt=prompt,
    )


def _corrected(
    memory: Memory, seen: Observation, config: Config, costs: Costs, came: Arrivals, load: Load
) -> Memory:
    """Compares what the virtual fleet of the real size would have done with what was measured."""
    counted, late = load.first_tokens, load.first_tokens_late
    if load.finished > 0 and load.finished_slow / load.finished > late / max(counted, 1.0):
        counted, late = load.finished, load.finished_slow
    if counted <= 0 or config.ttft_target is None or not memory.backlog or seen.ready <= 0:
        return memory
    fleets = sizes(config)
    if len(memory.backlog) != len(fleets):
        return memory
    index = max((at for at, one in enumerate(fleets) if one <= seen.ready), default=0)
    _, share = served(fleets[index], memory.backlog[index], config, costs, came)
    keep = math.exp(-came.seconds / config.history)
    measured = memory.measured * keep + late
    foreseen = memory.foreseen * keep + counted * (1.0 - share)
    requests = memory.requests * keep + counted
    least, most = CORRECTION
    step = GAIN * came.seconds / 60.0 * (measured - foreseen) / requests
    return msgspec.structs.replace(
        memory,
        measured=measured,
        foreseen=foreseen,
        requests=requests,
        correction=min(max(memory.correction * math.exp(step), least), most),
    )
