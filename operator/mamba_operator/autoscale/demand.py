"""Demand of the current load in engines, for each limited resource of an engine. Pure.

The demand is monotone: a larger load never gives a smaller number, because estimates learned from one
observation are used only from the next one on.
"""

import math

import msgspec

from mamba_operator.autoscale.config import AutoscalerConfig
from mamba_operator.autoscale.engine_costs import EngineCosts
from mamba_operator.autoscale.memory import AutoscalerMemory
from mamba_operator.autoscale.observation import EngineLoad, GatewayTraffic, Observation
from mamba_operator.autoscale.pod_starts import PodStarts

CROWDED_SHARE = 0.8
"""Share of slots or pages in use from which requests are assumed to wait for them."""
MIN_DRAIN_SECONDS = 10.0
"""Smallest number of seconds in which more engines have to clear a queue."""


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of engines that the load needs now, by limited resource of an engine, without headroom."""

    prefill: float = 0.0
    """Engines whose time the prompts need."""
    decode: float = 0.0
    """Engines whose time generation needs."""
    slots: float = 0.0
    """Engines whose state slots, or places in batches, the load needs."""
    pages: float = 0.0
    """Engines whose KV pages the load needs."""
    queue: float = 0.0
    """Engines that clear the queue which remains once new engines could be ready; 0 without a queue."""
    work_fast: float = 0.0
    """Arriving work in seconds of an engine per second, smoothed over `AutoscalerConfig.fast`."""
    work_slow: float = 0.0
    """Arriving work in seconds of an engine per second, smoothed over `AutoscalerConfig.slow`."""

    @property
    def work(self) -> float:
        """Number of engines that prompts and generation need together."""
        return self.prefill + self.decode

    def binding(self) -> str:
        """Return the resource with the largest demand: prefill, decode, slots, pages or queue."""
        work = max((self.prefill, "prefill"), (self.decode, "decode"))[1]
        return max((self.work, work), (self.slots, "slots"), (self.pages, "pages"), (self.queue, "queue"))[1]


def demand(
    memory: AutoscalerMemory,
    observation: Observation,
    config: AutoscalerConfig,
    costs: EngineCosts,
    starts: PodStarts,
    passed: float,
) -> Demand:
    """Return the demand of one observation, `passed` seconds after the previous one.

    `costs` are the learned costs of requests, and `starts` the engines that are starting.
    """
    load = observation.load or EngineLoad()
    prefill, decode = costs.prefill(load), costs.decode(load)
    first = memory.whole_at < 0
    fast = _smoothed(memory.work_fast, prefill + decode, passed, config.fast, first=first)
    slow = _smoothed(memory.work_slow, prefill + decode, passed, config.slow, first=first)
    if not observation.whole:
        # Unseen load may still exist: a partial observation may raise the load, but never lower it.
        fast, slow = max(fast, memory.work_fast), max(slow, memory.work_slow)
    rising = max(fast - slow, 0.0) * min(starts.seconds / config.slow, 1.0)
    total = prefill + decode
    share = prefill / total if total > 0 else 1.0
    time = (fast + rising) / costs.capacity
    return Demand(
        prefill=time * share,
        decode=time * (1.0 - share),
        slots=_memory_demand(load.slots_used, observation, config),
        pages=_memory_demand(load.pages_used, observation, config),
        queue=_queue_demand(memory, observation, config, costs, starts, fast),
        work_fast=fast,
        work_slow=slow,
    )


def waiting_requests(traffic: GatewayTraffic | None) -> int:
    """Return the number of requests that wait at gateways for an engine."""
    return traffic.queued + traffic.held if traffic is not None else 0


def _memory_demand(used: float, observation: Observation, config: AutoscalerConfig) -> float:
    """Return the demand for slots or pages, in engines. `used` is their use, as a number of engines.

    While the engines that read the states of these engines have no room, further engines would fill up as
    well. States that wait then keep the present number of engines, and do not make the fleet grow.
    """
    load = observation.load or EngineLoad()
    demand = _pool_demand(used, load)
    if observation.readers_full:
        return min(demand, min(config.keep_use, config.grow_use) * max(observation.desired, 1))
    return demand


def _pool_demand(used: float, load: EngineLoad) -> float:
    """Return how many engines are full by their use of slots or pages.

    `used` is the use of one of the two, as a number of engines. Waiting requests count if it is short.
    """
    if load.places and load.engines:
        used = max(used, load.running * load.engines / load.places)
    if load.engines and load.running and used >= CROWDED_SHARE * load.engines:
        used += load.waiting * used / load.running
    return used


def _queue_demand(
    memory: AutoscalerMemory,
    observation: Observation,
    config: AutoscalerConfig,
    costs: EngineCosts,
    starts: PodStarts,
    work: float,
) -> float:
    """Return the engines that clear, in time, the queue that will remain once new engines could be ready.

    `work` is the arriving work in seconds of an engine per second; the other parameters are those of
    `demand`.
    """
    load = observation.load or EngineLoad()
    tokens = load.waiting_tokens + waiting_requests(observation.traffic) * memory.prompt_tokens
    ahead = starts.seconds
    ready = observation.ready * ahead
    # Starting engines have half of their start before them, on average.
    starting = max(len(observation.pending) - starts.stuck, 0) * ahead / 2
    left = (
        tokens * costs.prompt_token + (work - (ready + starting) / max(ahead, 1e-9) * costs.capacity) * ahead
    )
    if tokens <= 0 or left <= 0:
        return 0.0
    within = max(config.ttft_target or config.wait_target, MIN_DRAIN_SECONDS, ahead)
    return (work + left / within) / costs.capacity


def updated_rise(
    memory: AutoscalerMemory,
    observation: Observation,
    config: AutoscalerConfig,
    demanded: Demand,
    start: float,
    passed: float,
) -> tuple[float, float]:
    """Return (base, rise) of the memory after one more observation.

    At first the changes of the load are unknown. The load is then assumed to rise by the current number of
    engines, and this assumption decays like an observed rise. `start` is the expected seconds of an engine's
    start, and `passed` the seconds since the last observation.
    """
    if memory.whole_at < 0:
        return demanded.work_fast, float(observation.desired)
    if not observation.whole:
        return memory.base, memory.rise
    base = min(demanded.work_fast, _smoothed(memory.base, demanded.work_fast, passed, start, first=False))
    decayed = memory.rise * math.exp(-passed / (config.rises * config.history))
    return base, max(decayed, demanded.work_fast - base)


def _smoothed(old: float, new: float, passed: float, constant: float, *, first: bool) -> float:
    """Return the exponential moving average after `passed` seconds, with the time `constant` in seconds."""
    if first:
        return new
    return old + (1.0 - math.exp(-passed / constant)) * (new - old)
