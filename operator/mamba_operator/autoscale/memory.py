"""`AutoscalerMemory`: the state that a decision leaves for the next one. Frozen plain data of bounded size.

Each decision is recorded with its memory. An autoscaler that restarts begins with an empty memory; it keeps
the running engines until it has seen the load of all engines for a whole `scale_down_delay`.
"""

import msgspec


class StepFit(msgspec.Struct, frozen=True, kw_only=True):
    """Sums by which a straight line is fitted to the seconds of a step by the sequences per engine.

    Older observations count less and less.
    """

    n: float = 0.0
    """Sum of the weights of all observations."""
    x: float = 0.0
    """Sum of the sequences per engine."""
    y: float = 0.0
    """Sum of the seconds of a step."""
    xx: float = 0.0
    """Sum of the squares of the sequences."""
    xy: float = 0.0
    """Sum of the sequences times the seconds."""


class AutoscalerMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what the autoscaler remembers of one role from one decision to the next.

    Times are values of `elapsed`, the time that observations cover.
    """

    at: float | None = None
    """`Observation.at` of the last observation; None before the first."""
    elapsed: float = 0.0
    """Seconds that have passed. A clock change moves it by `AutoscalerConfig.longest_gap` at most, never
    back."""
    known_seconds: float = msgspec.field(default=0.0, name="known")
    """Seconds of `elapsed` with a known load of all ready engines; recommendations age by these."""
    whole_at: float = -1.0
    """`elapsed` when the load of all ready engines was last known; -1 = never."""
    heard_at: float = -1.0
    """`elapsed` when all gateways last answered; -1 = never."""
    target: int | None = None
    """Number of engines of the last decision."""
    desired: int | None = msgspec.field(default=None, name="asked")
    """`Observation.desired` of the last observation: a decision takes a moment to come into force."""
    window: tuple[tuple[float, int], ...] = ()
    """Recent recommendations (known seconds, engines), each above all later ones, oldest first."""
    busy: float = 0.0
    """`elapsed` when there was last a request or a starting engine, or when neither could be excluded."""
    starting: tuple[tuple[str, float], ...] = ()
    """(pod, `elapsed` when it was first seen) of pods that are not ready yet."""
    started: float = -1.0
    """`elapsed` when a pod was last seen to become ready; -1 = never."""
    ready: int = 0
    """Engines that were ready at the last observation."""
    start_seconds: float = 0.0
    """Learned seconds of a pod's start; 0 = none was observed."""
    speed: float = 0.0
    """Prompt tokens per second of one engine, smoothed over measurements; 0 = not measured yet."""
    step: StepFit = StepFit()
    """Fit of the time of decoding steps by batch size."""
    efficiency: float = 1.0
    """Ratio of the work of saturated engines to the work expected from `speed` and `step`."""
    prompt_tokens: float = 0.0
    """Mean number of tokens to compute per request."""
    work_fast: float = 0.0
    """Value of `Demand.work_fast` at the last observation."""
    work_slow: float = 0.0
    """Value of `Demand.work_slow` at the last observation."""
    base: float = 0.0
    """Smallest work over about the time of a start: it falls at once with `work_fast` and rises slowly."""
    rise: float = 0.0
    """Largest recent rise of the work above `base`, decayed. Until the whole load was known once, the number
    of engines in force."""
    correction: float = 1.0
    """Factor on the work with which virtual fleets miss the targets as often as the real fleet did."""
    measured: float = 0.0
    """Decayed number of requests of the real fleet that missed a target."""
    foreseen: float = 0.0
    """Decayed number of requests that missed a target in the virtual fleet of the real size."""
    requests: float = 0.0
    """Decayed number of requests whose times were measured."""
    backlog: tuple[float, ...] = ()
    """Seconds of waiting work in each virtual fleet, in the order of `virtual_fleets.sizes`."""
    met: tuple[float, ...] = ()
    """Decayed number of requests that each virtual fleet would have served within the targets."""
    came: float = 0.0
    """Decayed number of requests that arrived."""
