"""`decide`: computes the number of engines from an observation, a config and a memory. Pure; no clock.

Called by the operator's autoscaler, by `mambaserve scaling replay` and by the fleet simulator, with the
same result. A fleet grows at once to the number needed now, or to the number that would have been enough
recently. It shrinks to the largest number recommended in the last `scale_down_delay`, and never on missing
data.
"""

import math

import msgspec

from mamba_operator.autoscale.config import AutoscalerConfig
from mamba_operator.autoscale.demand import Demand, demand, updated_rise, waiting_requests
from mamba_operator.autoscale.engine_costs import EngineCosts, engine_costs
from mamba_operator.autoscale.estimates import updated_estimates
from mamba_operator.autoscale.memory import AutoscalerMemory
from mamba_operator.autoscale.observation import Observation
from mamba_operator.autoscale.pod_starts import PodStarts, pod_starts
from mamba_operator.autoscale.virtual_fleets import share_met, smallest_sufficient


class ScalingDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The number of engines that shall run, and the reason."""

    target: int
    """Number of engines that shall run."""
    reason: str
    """One sentence with numbers."""
    binding: str
    """Cause of the number: prefill, decode, slots, pages, queue, history, idle, wake, bounds or data."""
    blind: str = ""
    """Message about data that has been missing for too long; empty otherwise."""
    demand: Demand
    """Demand in engines, by limited resource of an engine."""
    memory: AutoscalerMemory
    """Memory for the next decision."""


class _Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """The number of engines that one rule recommends, its cause, and the reason in words."""

    engines: int
    binding: str
    why: str


def decide(observation: Observation, config: AutoscalerConfig, memory: AutoscalerMemory) -> ScalingDecision:
    """Decide how many engines shall run.

    Args:
        observation: the fleet now; unknown values are None.
        config: bounds, targets and constants.
        memory: the memory of the last decision; `AutoscalerMemory()` at first.
    """
    passed = _seconds_since(observation, config, memory)
    elapsed = memory.elapsed + passed
    starts = pod_starts(memory, observation, config, elapsed)
    cost = engine_costs(memory, observation.load)
    demanded = demand(memory, observation, config, cost, starts, passed)
    grow = _needed(memory, config, cost, demanded, demanded.work, growing=True)
    calm_work = max(demanded.work, demanded.work_slow / cost.capacity)
    keep = _needed(memory, config, cost, demanded, calm_work, growing=False)
    sight = _sight(memory, observation, elapsed, passed)
    recommended = max(keep.engines if observation.whole else 0, grow.engines)
    window = _window(memory, observation, config, sight, elapsed, recommended)
    idle = _is_idle(observation)
    # A starting engine was requested by a client that will retry: the deployment is not idle until then.
    busy = memory.busy if idle and not starts.coming and memory.at is not None else elapsed
    chosen = _chosen(observation, config, starts, grow, keep, window, elapsed - busy, idle)
    estimates = updated_estimates(memory, observation, config, cost, demanded, passed)
    base, rise = updated_rise(memory, observation, config, demanded, starts.seconds, passed)
    return ScalingDecision(
        target=chosen.engines,
        reason=chosen.why,
        binding=chosen.binding,
        blind=_blind(observation, config, sight, elapsed),
        demand=demanded,
        memory=msgspec.structs.replace(
            estimates,
            at=observation.at,
            elapsed=elapsed,
            known_seconds=sight.known_seconds,
            whole_at=sight.whole_at,
            heard_at=sight.heard_at,
            target=chosen.engines,
            desired=observation.desired,
            window=window,
            busy=busy,
            starting=starts.starting,
            started=starts.started,
            ready=observation.ready,
            start_seconds=starts.learned,
            base=base,
            rise=rise,
        ),
    )


def _seconds_since(observation: Observation, config: AutoscalerConfig, memory: AutoscalerMemory) -> float:
    """Return the seconds since the last observation, from 0 (clock set back) to `config.longest_gap`."""
    return 0.0 if memory.at is None else min(max(observation.at - memory.at, 0.0), config.longest_gap)


def _needed(
    memory: AutoscalerMemory,
    config: AutoscalerConfig,
    cost: EngineCosts,
    demanded: Demand,
    work: float,
    *,
    growing: bool,
) -> _Recommendation:
    """Return how many engines the largest demand needs, within the bounds.

    The number is the larger one of two: the engines for the present `demanded` load with the configured
    headroom, and the engines that would have been enough recently. The headroom is that of a fleet that may
    grow if `growing`, and otherwise that of a fleet that may shrink. `work` is the smoothed load in engines,
    and `cost` the learned costs of requests.
    """
    use = config.grow_use if growing else config.keep_use
    share = demanded.prefill / demanded.work if demanded.work > 0 else 1.0
    usable = cost.usable(config, config.grow_time if growing else config.keep_use, share)
    unit = demanded.binding()
    engines_by_unit = {
        unit if unit in ("prefill", "decode") else "prefill": work / usable,
        "slots": demanded.slots / use,
        "pages": demanded.pages / use,
        "queue": demanded.queue,
    }
    if not growing:
        # The current load, plus the recent rise of the load during an engine's start.
        engines_by_unit["history"] = (work + memory.rise / cost.capacity) / cost.usable(
            config, config.grow_time, share
        )
    binding, most = max(engines_by_unit.items(), key=lambda item: item[1])
    engines = math.ceil(most - 1e-9)
    why = f"{binding} needs {most:.2f} engines"
    if binding == "history":
        why = f"the load and its recent rise need {most:.2f} engines"
    past = smallest_sufficient(memory, config, growing=growing)
    if past is not None and past > engines:
        met = share_met(memory, config, past) or 0.0
        less = share_met(memory, config, past - 1) if past > 1 else None
        why = f"with {past} engines {met:.1%} of the recent requests would have met the targets"
        why += f", with {past - 1} {less:.1%}" if less is not None else ""
        engines, binding = past, "history"
    bounded = min(max(engines, config.lowest), config.max_replicas)
    if bounded != engines and bounded != 1:
        which = "maxReplicas" if bounded < engines else "minReplicas"
        return _Recommendation(engines=bounded, binding="bounds", why=f"{why}, and {which} is {bounded}")
    return _Recommendation(engines=bounded, binding=binding, why=why)


class _Sight(msgspec.Struct, frozen=True, kw_only=True):
    """The times at which the load was known. `AutoscalerMemory` keeps and describes these fields."""

    known_seconds: float
    whole_at: float
    heard_at: float


def _sight(memory: AutoscalerMemory, observation: Observation, elapsed: float, passed: float) -> _Sight:
    """Return the times after one more observation, `passed` seconds after the last one.

    `elapsed` is the time of the observation on the clock of the memory.
    """
    whole = observation.whole
    return _Sight(
        known_seconds=memory.known_seconds + (passed if whole and memory.whole_at >= 0 else 0.0),
        whole_at=elapsed if whole else memory.whole_at,
        heard_at=elapsed if observation.traffic is not None else memory.heard_at,
    )


def _window(
    memory: AutoscalerMemory,
    observation: Observation,
    config: AutoscalerConfig,
    sight: _Sight,
    elapsed: float,
    engines: int,
) -> tuple[tuple[float, int], ...]:
    """Return the recommendations of the last `scale_down_delay` that are above all later ones.

    An observation without the whole load ages nothing, and recommends only a growth. Once the load has been
    unknown for `longest_gap`, the running number counts as a recommendation for a whole delay of known load.
    Each recommendation is a pair of its time in seconds of known load, and the number of engines.
    `engines` is the new recommendation, and `elapsed` its time on the clock of the memory.
    """
    window, age = list(memory.window), sight.known_seconds
    unseen = elapsed - max(sight.whole_at, 0.0) > config.longest_gap
    if memory.at is None or unseen or observation.desired not in (memory.target, memory.desired):
        # The past is unknown, or somebody else has set the number: the number counts as a recommendation.
        window = [*_without_smaller(window, observation.desired), (age, observation.desired)]
    if observation.whole or engines > observation.desired:
        # Without the growth on a part of the load, the next whole observation would undo it at once.
        window = [*_without_smaller(window, engines), (age, engines)]
    delay = config.scale_down_delay
    return tuple((since, number) for since, number in window if age - since < delay or since == age)


def _blind(observation: Observation, config: AutoscalerConfig, sight: _Sight, elapsed: float) -> str:
    """Return a message that the load of pods was unknown for a whole `scale_down_delay`; "" if it was not."""
    engines = observation.ready > 0 and elapsed - max(sight.whole_at, 0.0) >= config.scale_down_delay
    gateways = config.min_replicas == 0 and elapsed - max(sight.heard_at, 0.0) >= config.scale_down_delay
    if not elapsed or not (engines or gateways):
        return ""
    return _unseen(observation, "engines" if engines else "gateways")


def _unseen(observation: Observation, which: str) -> str:
    """Return a message that names the missing data and the pods that did not report it."""
    pods = ", ".join(observation.silent) or f"some {which}"
    data = "the load" if which == "engines" else "traffic"
    return f"the operator got no metrics from {pods}: {data} is unknown, so no engine stops"


def _without_smaller(window: list[tuple[float, int]], engines: int) -> list[tuple[float, int]]:
    return [(time, larger) for time, larger in window if larger > engines]


def _is_idle(observation: Observation) -> bool | None:
    """Return whether the deployment has no requests at all.

    The result is None if no report shows a request, and some engine or gateway did not report.
    """
    load, traffic = observation.load, observation.traffic
    if traffic is not None and (traffic.in_flight or traffic.queued or traffic.held or traffic.arrivals > 0):
        return False
    if load is not None and (load.running or load.waiting or load.arrivals > 0):
        return False
    if traffic is None or (load.engines if load is not None else 0) < observation.ready:
        return None
    return True


def _chosen(
    observation: Observation,
    config: AutoscalerConfig,
    starts: PodStarts,
    grow: _Recommendation,
    keep: _Recommendation,
    window: tuple[tuple[float, int], ...],
    idle_seconds: float,
    idle: bool | None,
) -> _Recommendation:
    """Return the final number within the bounds: it grows at once, and shrinks to the largest of `window`.

    `grow` is the number to grow to, and `keep` the number to keep at least. `idle` says whether there are no
    requests at all (None = unknown), and `idle_seconds` for how long. `starts` are the engines that are
    starting.
    """
    desired = observation.desired
    if config.min_replicas == 0:
        if desired == 0:
            return _woken(observation, grow)
        if idle and idle_seconds >= config.scale_down_delay:
            why = f"no request for {idle_seconds:.0f} s, and minReplicas is 0"
            return _Recommendation(engines=0, binding="idle", why=why)
    if grow.engines > desired:
        return _grown(desired, starts, grow, config)
    low = max(engines for _, engines in window)
    floor = min(max(low, config.lowest), config.max_replicas)
    if desired > config.max_replicas or desired < config.lowest:
        return _bounded(desired, config)
    if not observation.whole and desired > config.lowest:
        return _Recommendation(engines=desired, binding="data", why=_stays(observation, desired))
    if config.min_replicas == 0 and idle is None and observation.traffic is None and floor >= desired:
        why = f"{desired} engines stay: {_unseen(observation, 'gateways')}"
        return _Recommendation(engines=desired, binding="data", why=why)
    if floor >= desired:
        return _Recommendation(
            engines=desired, binding=grow.binding, why=f"{desired} engines stay: {grow.why}"
        )
    delay = config.scale_down_delay
    return _Recommendation(
        engines=floor, binding=keep.binding,
        why=f"{floor} engines instead of {desired}: {keep.why}, and no more than {low} in {delay:.0f} s",
    )  # fmt: skip


def _woken(observation: Observation, grow: _Recommendation) -> _Recommendation:
    """Return the number of engines to start where none runs: zero unless a request waits for an engine."""
    waiting = waiting_requests(observation.traffic)
    if not waiting and not observation.woken:
        return _Recommendation(engines=0, binding="idle", why="no engine runs and no request waits for one")
    cause = f"{waiting} requests wait" if waiting else "a gateway has asked for an engine"
    why = f"{cause} and no engine runs"
    return _Recommendation(engines=grow.engines, binding="wake", why=why)


def _bounded(desired: int, config: AutoscalerConfig) -> _Recommendation:
    """Return the nearest number within the bounds."""
    which = "maxReplicas" if desired > config.max_replicas else "minReplicas"
    engines = min(max(desired, config.lowest), config.max_replicas)
    why = f"the number was {desired} engines, and {which} does not allow it"
    return _Recommendation(engines=engines, binding="bounds", why=why)


def _stays(observation: Observation, desired: int) -> str:
    """Return the reason why the number of engines stays while reports are missing."""
    load = observation.load
    reporting = load.engines - load.unrated if load is not None else 0
    return f"{reporting} of {observation.ready} ready engines report: {desired} stay until all of them do"


def _grown(
    desired: int, starts: PodStarts, grow: _Recommendation, config: AutoscalerConfig
) -> _Recommendation:
    """Return a larger number of engines, or the present one while pods are stuck and none becomes ready."""
    target = min(grow.engines + starts.replaced, config.max_replicas, 2 * grow.engines)
    why = f"{target} engines instead of {desired}: {grow.why}"
    if starts.stuck:
        why += f"; {starts.stuck} pods do not become ready"
        if not starts.replaced and desired >= config.lowest:
            return _Recommendation(
                engines=desired, binding="data",
                why=f"{desired} engines stay, though {grow.why}: {starts.stuck} pods do not become ready, "
                "and more would not either",
            )  # fmt: skip
    return _Recommendation(engines=target, binding=grow.binding, why=why)
