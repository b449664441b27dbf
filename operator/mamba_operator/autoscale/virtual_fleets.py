"""Fleets of every size that could have run, each with the queue that the traffic would have made in it. Pure.

The answer to "how many engines would have been enough lately" is counted, not guessed from averages: bursts
are in it as often as they come. Queues are fluid, one per fleet, with a waiting time for chance on top
(Sakasegawa's approximation of M/M/c, Ann. Inst. Stat. Math. 29, 1977).
"""

import functools
import math

import msgspec

from mamba_operator.autoscale.config import AutoscalerConfig
from mamba_operator.autoscale.engine_costs import EngineCosts
from mamba_operator.autoscale.memory import AutoscalerMemory

EXACT = 48
"""Up to so many engines there is a virtual fleet of each size; beyond, each is 4 % larger than the last."""
VARIABILITY = 1.25
"""(1 + squared coefficient of variation of prompts) / 2."""
ENOUGH = 20.0
"""Requests that must have come before the past is believed."""
DIGITS = 5


class IntervalArrivals(msgspec.Struct, frozen=True, kw_only=True):
    """What came between two looks; rates per second, work in seconds of an engine."""

    seconds: float
    requests: float
    prefill: float
    decode: float
    prompt: float
    """Work of one prompt."""


@functools.cache
def sizes(config: AutoscalerConfig) -> tuple[int, ...]:
    """Sizes of the virtual fleets, ascending."""
    found = list(range(1, min(EXACT, config.max_replicas) + 1))
    while found[-1] < config.max_replicas:
        found.append(min(max(found[-1] + 1, math.ceil(found[-1] * 1.04)), config.max_replicas))
    return tuple(found)


class VirtualFleetState(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a Memory that this file keeps."""

    backlog: tuple[float, ...]
    met: tuple[float, ...]
    came: float


def advance(
    memory: AutoscalerMemory, config: AutoscalerConfig, costs: EngineCosts, arrivals: IntervalArrivals
) -> VirtualFleetState:
    """The past with one interval more."""
    fleets = sizes(config)
    backlog = memory.backlog if len(memory.backlog) == len(fleets) else (0.0,) * len(fleets)
    met = memory.met if len(memory.met) == len(fleets) else (0.0,) * len(fleets)
    keep = math.exp(-arrivals.seconds / config.history)
    came = arrivals.requests * arrivals.seconds
    new_backlog, new_met = [], []
    for size, left, done in zip(fleets, backlog, met, strict=True):
        after, share = simulated_interval(size, left, config, costs, arrivals)
        new_backlog.append(_short(after))
        new_met.append(_short(done * keep + share * came))
    return VirtualFleetState(
        backlog=tuple(new_backlog), met=tuple(new_met), came=_short(memory.came * keep + came)
    )


def simulated_interval(
    size: int, backlog: float, config: AutoscalerConfig, costs: EngineCosts, arrivals: IntervalArrivals
) -> tuple[float, float]:
    """(seconds of work that wait after the interval, share of its requests served in time) in one fleet."""
    capacity = size * costs.capacity
    free = capacity - arrivals.decode
    grown = backlog + (arrivals.prefill - free) * arrivals.seconds
    after = max(grown, 0.0)
    if free <= 0:
        return after, 0.0
    wait, allowed = after / free, allowed_wait(config, costs, arrivals.prompt)
    first, last = sorted((backlog / free, wait))
    share = 1.0 if last <= allowed else 0.0 if first >= allowed else (allowed - first) / (last - first)
    use = min((arrivals.prefill + arrivals.decode) / capacity, 0.999)
    if arrivals.prompt > 0:
        # One prompt at a time in each engine: with chance alone, so many wait, and so long.
        mean = arrivals.prompt / costs.capacity * VARIABILITY / (size * (1.0 - use))
        share *= 1.0 - use ** (math.sqrt(2.0 * (size + 1)) - 1.0) * math.exp(-allowed / mean)
    if config.tpot_target is not None and costs.step > 0:
        prompts = min(arrivals.prefill / capacity, 0.999)
        slow = costs.step / (1.0 - prompts) / config.tpot_target
        share *= 1.0 if slow <= 1.0 else slow**-4
    return after, share


def allowed_wait(config: AutoscalerConfig, costs: EngineCosts, prompt: float) -> float:
    """Seconds that a prompt of so much work may wait for its turn."""
    if config.ttft_target is None:
        return config.wait_target
    own = prompt / costs.capacity + costs.step
    return max(config.ttft_target - own, config.ttft_target / 4)


def smallest_sufficient(memory: AutoscalerMemory, config: AutoscalerConfig, *, growing: bool) -> int | None:
    """The smallest fleet that would have kept the goal; None as long as too little came to say.

    A share of what any fleet could have kept: no number of engines makes one prompt faster. What was not
    seen yet speaks against any change: a fleet may miss, before it grows, what it may miss in a whole
    `history` (the burst of the first minutes is not taken to come back every few minutes), and one that
    shrinks must do with so much less of that as less of a history was seen.
    """
    fleets = sizes(config)
    if memory.came < ENOUGH or len(memory.met) != len(fleets):
        return None
    seen = -math.expm1(-max(memory.elapsed, 1.0) / config.history)
    best = memory.met[-1]
    misses = (1.0 - config.grow_goal) / seen if growing else (1.0 - config.keep_goal) * seen
    wanted = best * (1.0 - misses)
    return next((size for size, met in zip(fleets, memory.met, strict=True) if met >= wanted), fleets[-1])


def share_met(memory: AutoscalerMemory, config: AutoscalerConfig, size: int) -> float | None:
    """Share of the past's requests that a fleet of about `size` would have served in time."""
    fleets = sizes(config)
    if memory.came < ENOUGH or len(memory.met) != len(fleets):
        return None
    index = max((at for at, one in enumerate(fleets) if one <= size), default=0)
    return memory.met[index] / memory.came


def _short(value: float) -> float:
    """With as many digits as matter: it is recorded."""
    return float(f"{value:.{DIGITS}g}")
