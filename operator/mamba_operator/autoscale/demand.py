"""How many engines the current load needs, for each resource that an engine has a limited amount of. Pure.

Monotone: a larger load never gives a smaller number, since what one observation teaches is used only from the
next one on.
"""

import math

import msgspec

from mamba_operator.autoscale.config import AutoscalerConfig
from mamba_operator.autoscale.engine_costs import EngineCosts
from mamba_operator.autoscale.memory import AutoscalerMemory
from mamba_operator.autoscale.observation import EngineLoad, GatewayTraffic, Observation
from mamba_operator.autoscale.pod_starts import PodStarts

CROWDED = 0.8
"""Share of slots or pages in use from which on requests are taken to wait for them."""
LEAST_DRAIN = 10.0
"""Seconds in which a queue is to be gone once more engines run, at least."""


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """Demand by resource, in engines, without any headroom."""

    prefill: float = 0.0
    """Of time, for prompts."""
    decode: float = 0.0
    """Of time, for generation."""
    slots: float = 0.0
    """Of state slots, or of places in batches."""
    pages: float = 0.0
    """Of KV pages."""
    queue: float = 0.0
    """Of time, to work off what waits once more engines could run."""
    work_fast: float = 0.0
    """Seconds of an engine per second, over the last half minute or so."""
    work_slow: float = 0.0
    """The same over some minutes."""

    @property
    def work(self) -> float:
        """Engines' worth of time for prompts and generation."""
        return self.prefill + self.decode

    def binding(self) -> str:
        """The unit that is asked for most."""
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
    """The demand of one observation. `passed`: seconds since the observation before it."""
    load = observation.load or EngineLoad()
    prefill, decode = costs.prefill(load), costs.decode(load)
    first = memory.whole_at < 0
    fast = _smoothed(memory.work_fast, prefill + decode, passed, config.fast, first=first)
    slow = _smoothed(memory.work_slow, prefill + decode, passed, config.slow, first=first)
    if not observation.whole:
        # What is not seen is not gone: such a look may raise the load, and never lower it.
        fast, slow = max(fast, memory.work_fast), max(slow, memory.work_slow)
    rising = max(fast - slow, 0.0) * min(starts.seconds / config.slow, 1.0)
    total = prefill + decode
    share = prefill / total if total > 0 else 1.0
    time = (fast + rising) / costs.capacity
    return Demand(
        prefill=time * share,
        decode=time * (1.0 - share),
        slots=_pool_demand(load.slots_used, load),
        pages=_pool_demand(load.pages_used, load),
        queue=_queue_demand(memory, observation, config, costs, starts, fast),
        work_fast=fast,
        work_slow=slow,
    )


def waiting_requests(traffic: GatewayTraffic | None) -> int:
    """Requests that no engine has yet."""
    return traffic.queued + traffic.held if traffic is not None else 0


def _pool_demand(used: float, load: EngineLoad) -> float:
    """Engines' worth of a pool in use, plus what waiting requests would take if the pool is what they wait
    for."""
    if load.places and load.engines:
        used = max(used, load.running * load.engines / load.places)
    if load.engines and load.running and used >= CROWDED * load.engines:
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
    """Engines that clear, in time, the queue that will be left once new engines could be ready."""
    load = observation.load or EngineLoad()
    tokens = load.waiting_tokens + waiting_requests(observation.traffic) * memory.prompt_tokens
    ahead = starts.seconds
    ready = observation.ready * ahead
    # Those on their way have half of their start before them, on average.
    starting = max(len(observation.pending) - starts.stuck, 0) * ahead / 2
    left = (
        tokens * costs.prompt_token + (work - (ready + starting) / max(ahead, 1e-9) * costs.capacity) * ahead
    )
    if tokens <= 0 or left <= 0:
        return 0.0
    within = max(config.ttft_target or config.wait_target, LEAST_DRAIN, ahead)
    return (work + left / within) / costs.capacity


def updated_rise(
    memory: AutoscalerMemory,
    observation: Observation,
    config: AutoscalerConfig,
    demanded: Demand,
    start: float,
    passed: float,
) -> tuple[float, float]:
    """(base, rise) of the memory after one more observation.

    At first nothing is known of how the load changes: it is assumed that it may rise by as many engines as
    are asked for, and this assumption decays like an observed rise.
    """
    if memory.whole_at < 0:
        return demanded.work_fast, float(observation.asked)
    if not observation.whole:
        return memory.base, memory.rise
    base = min(demanded.work_fast, _smoothed(memory.base, demanded.work_fast, passed, start, first=False))
    decayed = memory.rise * math.exp(-passed / (config.rises * config.history))
    return base, max(decayed, demanded.work_fast - base)


def _smoothed(old: float, new: float, passed: float, constant: float, *, first: bool) -> float:
    """The exponential moving average after `passed` seconds more; `constant`: its time constant in
    seconds."""
    if first:
        return new
    return old + (1.0 - math.exp(-passed / constant)) * (new - old)
