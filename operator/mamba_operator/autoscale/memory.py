"""`AutoscalerMemory`: what a decision leaves for the next one. Frozen, plain data, of bounded size: it is
recorded too.

An autoscaler that starts anew starts with an empty one; it then keeps what runs until it has seen the load of
all engines for a whole `scale_down_delay`.
"""

import msgspec


class StepFit(msgspec.Struct, frozen=True, kw_only=True):
    """Decaying sums of (sequences per engine, seconds of a step) for a straight line through them."""

    n: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0


class AutoscalerMemory(msgspec.Struct, frozen=True, kw_only=True):
    """After some decisions. Times are `elapsed`, the time that passed as far as observations tell."""

    at: float | None = None
    """`Observation.at` of the last one; None before the first."""
    elapsed: float = 0.0
    """Seconds that have passed; a clock that is set moves it by `Config.longest_gap` at most, never back."""
    known: float = 0.0
    """Seconds of it in which the load of all ready engines was known. What was recommended ages by these."""
    whole_at: float = -1.0
    """Elapsed when it was last known; -1 = never."""
    heard_at: float = -1.0
    """Elapsed when all gateways last answered; -1 = never."""
    target: int | None = None
    """The last decision."""
    asked: int | None = None
    """`Observation.asked` of the last one: what was decided takes a moment to be asked for."""
    window: tuple[tuple[float, int], ...] = ()
    """(known, engines) recommended lately: those that a later one has not exceeded, oldest first."""
    busy: float = 0.0
    """Elapsed when there was last a request, an engine that started, or no saying that there was neither."""
    starting: tuple[tuple[str, float], ...] = ()
    """(pod, elapsed) of pods that are not ready yet, and when each was first seen."""
    started: float = -1.0
    """Elapsed when a pod was last seen to become ready; -1 = never."""
    ready: int = 0
    """Engines that were ready then."""
    start_seconds: float = 0.0
    """Seconds a pod needs to be ready, learned; 0 = none was seen."""
    speed: float = 0.0
    """Prompt tokens per second of one engine, as last measured."""
    step: StepFit = StepFit()
    """Time of decoding steps by batch."""
    efficiency: float = 1.0
    """What saturated engines do, by what they should by `speed` and `step`."""
    prompt_tokens: float = 0.0
    """Mean of tokens to compute per request."""
    work_fast: float = 0.0
    """Engines' worth of work that came, over `Config.fast`."""
    work_slow: float = 0.0
    """The same over `Config.slow`."""
    base: float = 0.0
    """Least work of about a start's time: it falls at once with `work_fast` and rises slowly after it."""
    rise: float = 0.0
    """Most by which work rose above its base lately, decayed; before anything was seen, all that runs."""
    correction: float = 1.0
    """Work that makes virtual fleets keep the targets as badly as the real one did, by the work that came."""
    measured: float = 0.0
    """Share of requests in time that were missed, decayed sum of late ones."""
    foreseen: float = 0.0
    """The same as the virtual fleet of the real size has it."""
    requests: float = 0.0
    """Requests whose times were measured, decayed."""
    backlog: tuple[float, ...] = ()
    """Seconds of work that wait in each virtual fleet, by `virtual_fleets.sizes`."""
    met: tuple[float, ...] = ()
    """Requests that each would have served in time, decayed."""
    came: float = 0.0
    """Requests that came, decayed."""
