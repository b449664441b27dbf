"""Virtual fleets of every size that could have run, each with the queue that the traffic would cause. Pure.

The number of engines that would have been enough recently is counted, not estimated from averages: bursts
are in it as often as they happen. Queues are fluid, one per fleet, plus a waiting time for random arrivals
(Sakasegawa's approximation of M/M/c, Ann. Inst. Stat. Math. 29, 1977).
"""

import functools
import math

import msgspec

from mamba_operator.autoscale.config import AutoscalerConfig
from mamba_operator.autoscale.engine_costs import EngineCosts
from mamba_operator.autoscale.memory import AutoscalerMemory

LAST_EXACT_SIZE = 48
"""Number of engines up to which each size has a virtual fleet; larger fleets grow by 4 % each."""
VARIABILITY = 1.25
"""(1 + squared coefficient of variation of prompts) / 2."""
MIN_PAST_REQUESTS = 20.0
"""Smallest number of recent requests by which virtual fleets are judged."""
RECORDED_DIGITS = 5
"""Significant digits of recorded values."""


class IntervalArrivals(msgspec.Struct, frozen=True, kw_only=True):
    """The requests and the work that arrived between two observations.

    Rates are per second, and work is in seconds of an engine.
    """

    seconds: float
    requests: float
    prefill: float
    decode: float
    prompt: float
    """Work of one prompt."""
    present: float = 1.0
    """Share of the requests that need these engines."""


@functools.cache
def sizes(config: AutoscalerConfig) -> tuple[int, ...]:
    """Return the sizes of the virtual fleets, ascending."""
    fleet_sizes = list(range(1, min(LAST_EXACT_SIZE, config.max_replicas) + 1))
    while fleet_sizes[-1] < config.max_replicas:
        fleet_sizes.append(
            min(max(fleet_sizes[-1] + 1, math.ceil(fleet_sizes[-1] * 1.04)), config.max_replicas)
        )
    return tuple(fleet_sizes)


class VirtualFleetState(msgspec.Struct, frozen=True, kw_only=True):
    """Queues and successes of all virtual fleets after an interval; `AutoscalerMemory` keeps these fields."""

    backlog: tuple[float, ...]
    """Seconds of waiting work in each virtual fleet, in the order of `sizes`."""
    met: tuple[float, ...]
    """Number of requests that each virtual fleet would have served in time; older requests count less."""
    came: float
    """Number of requests that arrived; older ones count less."""


def advance(
    memory: AutoscalerMemory, config: AutoscalerConfig, costs: EngineCosts, arrivals: IntervalArrivals
) -> VirtualFleetState:
    """Return the state of the virtual fleets one interval after the state in `memory`."""
    fleets = sizes(config)
    backlog = memory.backlog if len(memory.backlog) == len(fleets) else (0.0,) * len(fleets)
    met = memory.met if len(memory.met) == len(fleets) else (0.0,) * len(fleets)
    keep = math.exp(-arrivals.seconds / config.history)
    came = arrivals.requests * arrivals.seconds
    new_backlog, new_met = [], []
    for size, left, done in zip(fleets, backlog, met, strict=True):
        after, share = simulated_interval(size, left, config, costs, arrivals)
        new_backlog.append(_rounded(after))
        in_time = 1.0 - (1.0 - share) * arrivals.present
        new_met.append(_rounded(done * keep + in_time * came))
    return VirtualFleetState(
        backlog=tuple(new_backlog), met=tuple(new_met), came=_rounded(memory.came * keep + came)
    )


def simulated_interval(
    size: int, backlog: float, config: AutoscalerConfig, costs: EngineCosts, arrivals: IntervalArrivals
) -> tuple[float, float]:
    """Return one fleet's seconds of waiting work after the interval, and its share of requests in time.

    The fleet has `size` engines and `backlog` seconds of waiting work at the beginning.
    """
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
        # Waiting time from random arrivals alone, with one prompt at a time in each engine.
        mean = arrivals.prompt / costs.capacity * VARIABILITY / (size * (1.0 - use))
        share *= 1.0 - use ** (math.sqrt(2.0 * (size + 1)) - 1.0) * math.exp(-allowed / mean)
    if config.tpot_target is not None and costs.step > 0:
        prompts = min(arrivals.prefill / capacity, 0.999)
        slow = costs.step / (1.0 - prompts) / config.tpot_target
        share *= 1.0 if slow <= 1.0 else slow**-4
    return after, share


def allowed_wait(config: AutoscalerConfig, costs: EngineCosts, prompt: float) -> float:
    """Return the seconds that a prompt with this amount of work may wait for its turn."""
    if config.ttft_target is None:
        return config.wait_target
    own = prompt / costs.capacity + costs.step
    return max(config.ttft_target - own, config.ttft_target / 4)


def smallest_sufficient(memory: AutoscalerMemory, config: AutoscalerConfig, *, growing: bool) -> int | None:
    """Return the smallest fleet that would have met the goal; None while there were too few requests.

    The goal is a share of the requests that the largest fleet would have met, because no number of engines
    makes one prompt faster. A short history makes any change less likely: before a fleet grows, it may miss
    as many requests as in a whole `history` (a burst in the first minutes is not expected to return every
    few minutes), and before it shrinks, it may miss fewer in proportion to the history seen.
    """
    fleets = sizes(config)
    if memory.came < MIN_PAST_REQUESTS or len(memory.met) != len(fleets):
        return None
    seen = -math.expm1(-max(memory.elapsed, 1.0) / config.history)
    best = memory.met[-1]
    misses = (1.0 - config.grow_goal) / seen if growing else (1.0 - config.keep_goal) * seen
    required = best * (1.0 - misses)
    return next((size for size, met in zip(fleets, memory.met, strict=True) if met >= required), fleets[-1])


def share_met(memory: AutoscalerMemory, config: AutoscalerConfig, size: int) -> float | None:
    """Return the share (0 to 1) of recent requests that a fleet of `size` engines would have served in time.

    It is the share of the largest virtual fleet that is no larger than `size`, or of the smallest one if all
    are larger. None while there were too few requests.
    """
    fleets = sizes(config)
    if memory.came < MIN_PAST_REQUESTS or len(memory.met) != len(fleets):
        return None
    index = max((place for place, fleet in enumerate(fleets) if fleet <= size), default=0)
    return memory.met[index] / memory.came


def _rounded(value: float) -> float:
    """Return the value rounded to the digits that matter, to keep records short."""
    return float(f"{value:.{RECORDED_DIGITS}g}")
