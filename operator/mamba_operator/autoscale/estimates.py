"""Estimates of the autoscaler after an observation: speed, costs, correction of virtual fleets. Pure."""

import math

import msgspec

from mamba_operator.autoscale.config import AutoscalerConfig
from mamba_operator.autoscale.demand import Demand, waiting_requests
from mamba_operator.autoscale.engine_costs import EngineCosts, learn_efficiency, learn_step
from mamba_operator.autoscale.memory import AutoscalerMemory
from mamba_operator.autoscale.observation import EngineLoad, Observation
from mamba_operator.autoscale.virtual_fleets import IntervalArrivals, advance, simulated_interval, sizes

SPEED_WEIGHT = 0.2
"""Weight of one measurement of the prefill speed."""
CORRECTION_RANGE = (0.5, 3.0)
"""Smallest and largest correction."""
CORRECTION_GAIN = 0.5
"""Change of the correction's logarithm per minute if all requests differ from the prediction."""


def updated_estimates(
    memory: AutoscalerMemory,
    observation: Observation,
    config: AutoscalerConfig,
    costs: EngineCosts,
    demanded: Demand,
    passed: float,
) -> AutoscalerMemory:
    """Return the memory after one more observation; the caller sets its times and recommendations.

    `costs` and `demanded` are the costs and the demand by which the number of engines was decided, and
    `passed` the seconds since the previous observation.
    """
    load = observation.load
    memory = msgspec.structs.replace(memory, work_fast=demanded.work_fast, work_slow=demanded.work_slow)
    if load is None or load.unrated:
        return memory
    speed = memory.speed
    if load.prefill_speed > 0:
        speed = load.prefill_speed if speed <= 0 else speed + SPEED_WEIGHT * (load.prefill_speed - speed)
    arrivals = _arrivals(memory, observation, config, costs, load, passed)
    memory = _corrected(memory, observation, config, costs, arrivals, load)
    past = advance(memory, config, costs, arrivals)
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


def _prompt(memory: AutoscalerMemory, load: EngineLoad) -> float:
    """Return the mean number of tokens to compute per request."""
    if load.arrivals <= 0:
        return memory.prompt_tokens
    mean = max(load.prompt_rate - load.cached_rate, 0.0) / load.arrivals
    return mean if memory.prompt_tokens <= 0 else memory.prompt_tokens + 0.1 * (mean - memory.prompt_tokens)


def _arrivals(
    memory: AutoscalerMemory,
    observation: Observation,
    config: AutoscalerConfig,
    costs: EngineCosts,
    load: EngineLoad,
    passed: float,
) -> IntervalArrivals:
    """Return the requests and work of the `passed` seconds since the last observation.

    The work per second is scaled by the learned correction.
    """
    prompt = _prompt(memory, load) * costs.prompt_token
    prefill = costs.prefill(load)
    if load.engines:
        # Engines do not count the requests that no engine has yet.
        prefill += (
            waiting_requests(observation.traffic) * prompt / max(passed, 1.0) if not load.arrivals else 0.0
        )
    requests = max(load.arrivals, observation.traffic.arrivals if observation.traffic is not None else 0.0)
    return IntervalArrivals(
        seconds=passed,
        requests=requests,
        prefill=prefill * memory.correction,
        decode=costs.decode(load) * memory.correction,
        prompt=prompt,
        present=min(load.arrivals / requests, 1.0) if config.bypassed and requests > 0 else 1.0,
    )


def _fleet_changed_recently(
    memory: AutoscalerMemory, observation: Observation, config: AutoscalerConfig
) -> bool:
    """Return whether the real fleet may still have a queue from a smaller size, unlike the virtual fleet."""
    since = memory.elapsed - max(memory.started, 0.0)
    return (
        bool(observation.pending)
        or observation.ready != memory.ready
        or since < (memory.start_seconds or config.first_start)
    )


def _corrected(
    memory: AutoscalerMemory,
    observation: Observation,
    config: AutoscalerConfig,
    costs: EngineCosts,
    arrivals: IntervalArrivals,
    load: EngineLoad,
) -> AutoscalerMemory:
    """Return the memory with a new correction of the work.

    The correction compares the measured times with the times of the virtual fleet of the real size.
    """
    counted, late = load.first_tokens, load.first_tokens_late
    if load.finished > 0 and load.finished_slow / load.finished > late / max(counted, 1.0):
        counted, late = load.finished, load.finished_slow
    if counted <= 0 or config.ttft_target is None or not memory.backlog or observation.ready <= 0:
        return memory
    fleets = sizes(config)
    if len(memory.backlog) != len(fleets) or _fleet_changed_recently(memory, observation, config):
        return memory
    index = max((place for place, size in enumerate(fleets) if size <= observation.ready), default=0)
    _, share = simulated_interval(fleets[index], memory.backlog[index], config, costs, arrivals)
    keep = math.exp(-arrivals.seconds / config.history)
    measured = memory.measured * keep + late
    foreseen = memory.foreseen * keep + counted * (1.0 - share)
    requests = memory.requests * keep + counted
    least, most = CORRECTION_RANGE
    step = CORRECTION_GAIN * arrivals.seconds / 60.0 * (measured - foreseen) / requests
    return msgspec.structs.replace(
        memory,
        measured=measured,
        foreseen=foreseen,
        requests=requests,
        correction=min(max(memory.correction * math.exp(step), least), most),
    )
