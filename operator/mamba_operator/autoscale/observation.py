"""`Observation`: what one decision of the autoscaler sees of all engines and gateways. Frozen; plain data.

Made by `fleet_view` from single reports, in the operator and in the simulator alike. Sums over engines:
its size does not depend on how many there are, and a decision can be recorded with it.
"""

import msgspec


class GatewayTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """What gateways say, summed over all of them."""

    in_flight: int = 0
    """Requests that are being relayed, or wait for an engine."""
    queued: int = 0
    """Requests that wait at a gateway for a place."""
    held: int = 0
    """Requests that wait for any engine to be ready."""
    arrivals: float = 0.0
    """Requests per second that came."""


class EngineLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What engines that report say, summed over all of them; rates are per second."""

    engines: int = 0
    """Engines that report."""
    unrated: int = 0
    """How many of them reported for the first time: over which time they counted is not known, so the rates
    below are without them."""
    running: int = 0
    """Sequences in running batches."""
    waiting: int = 0
    """Requests that wait inside engines."""
    places: int = 0
    """Sequences that may run at once."""
    slots_used: float = 0.0
    """Share of its state slots that running sequences hold, summed: 1.0 is one whole engine."""
    pages_used: float = 0.0
    """The same of KV pages."""
    waiting_tokens: float = 0.0
    """Prompt tokens that are still to be computed."""
    arrivals: float = 0.0
    """Requests per second that came."""
    prompt_rate: float = 0.0
    """Prompt tokens per second of requests that came."""
    cached_rate: float = 0.0
    """How many of them per second were resumed from a checkpoint."""
    output_rate: float = 0.0
    """Generated tokens per second."""
    prefill_speed: float = 0.0
    """Prompt tokens per second that one engine computes when it does nothing else, mean; 0 = not measured."""
    decode_step: float = 0.0
    """Seconds of a step that only decodes, mean; 0 = not measured."""
    saturated: int = 0
    """Engines that had prompts waiting at both ends of the interval."""
    saturated_prompt_rate: float = 0.0
    """Prompt tokens per second that those computed."""
    saturated_output_rate: float = 0.0
    """Tokens per second that those generated."""
    first_tokens: float = 0.0
    """Sequences that got their first token in the interval."""
    first_tokens_late: float = 0.0
    """How many of them after the target."""
    finished: float = 0.0
    """Sequences that ended in the interval and whose time per token is known."""
    finished_slow: float = 0.0
    """How many of them above the target per token."""


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet at one moment. What is not known is missing (None), never zero."""

    at: float
    """Seconds on any clock; only differences count, and steps of the clock are survived."""
    asked: int
    """Engines that are asked for now."""
    ready: int
    """Engines that may be sent requests."""
    pending: tuple[str, ...] = ()
    """Names of pods that were never ready yet, sorted."""
    load: EngineLoad | None = None
    """Of the ready engines with a fresh report; None while none has one."""
    traffic: GatewayTraffic | None = None
    """None unless every ready gateway has answered."""
    woken: bool = False
    """A gateway has asked for an engine just now."""
    silent: tuple[str, ...] = ()
    """Names of the first few ready pods, engines and gateways, that did not answer."""

    @property
    def whole(self) -> bool:
        """Whether the load of all ready engines is known. What is not is no load of zero."""
        load = self.load
        if self.asked == 0 and self.ready == 0:
            return True
        return load is not None and load.engines >= self.ready and not load.unrated
