"""`Observation`: the state of all engines and gateways for one decision of the autoscaler. Frozen plain data.

`fleet_view` builds it from single reports, in the operator and in the simulator alike. It holds sums over
engines, so its size does not depend on their number, and a decision can be recorded with it.
"""

import msgspec


class GatewayTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """The requests that gateways have, summed over the reports of all gateways."""

    in_flight: int = 0
    """Requests that a gateway relays or that wait for an engine."""
    queued: int = 0
    """Requests that wait at a gateway for a place."""
    held: int = 0
    """Requests that wait for any engine to be ready."""
    arrivals: float = 0.0
    """Arriving requests per second."""


class EngineLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The work that engines have, summed over the reports of all engines.

    Rates are per second.
    """

    engines: int = 0
    """Engines that report."""
    unrated: int = 0
    """Engines that reported for the first time; the rates below leave them out, because the time over which
    they counted is unknown."""
    running: int = 0
    """Sequences in running batches."""
    waiting: int = 0
    """Requests that wait inside engines."""
    places: int = 0
    """Sequences that may run at once."""
    slots_used: float = 0.0
    """State slots in use, as a share of one engine's, summed: 1.0 is one whole engine."""
    pages_used: float = 0.0
    """KV pages in use, as a share of one engine's, summed."""
    credits: int = 0
    """States that the engines can take from other engines now."""
    waiting_tokens: float = 0.0
    """Prompt tokens that engines still have to compute."""
    arrivals: float = 0.0
    """Arriving requests per second."""
    prompt_rate: float = 0.0
    """Prompt tokens per second of arriving requests."""
    cached_rate: float = 0.0
    """Prompt tokens per second that were resumed from a checkpoint."""
    output_rate: float = 0.0
    """Generated tokens per second."""
    prefill_speed: float = 0.0
    """Mean prompt tokens per second of one engine that does nothing else; 0 = not measured."""
    decode_step: float = 0.0
    """Mean seconds of a step that only decodes; 0 = not measured."""
    saturated: int = 0
    """Engines that had prompts to compute during the whole interval."""
    saturated_prompt_rate: float = 0.0
    """Prompt tokens per second that saturated engines computed."""
    saturated_output_rate: float = 0.0
    """Tokens per second that saturated engines generated."""
    first_tokens: float = 0.0
    """Sequences that got their first token in the interval."""
    first_tokens_late: float = 0.0
    """Sequences whose first token came after the target."""
    finished: float = 0.0
    """Sequences that ended in the interval with a known time per token."""
    finished_slow: float = 0.0
    """Sequences that ended in the interval above the target per token."""


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what the autoscaler knows of a fleet at one moment, by which it decides.

    An unknown value is None, never zero.
    """

    at: float
    """Seconds on any clock; only differences count, and changes of the clock do no harm."""
    desired: int = msgspec.field(name="asked")
    """Number of engines in force now."""
    ready: int
    """Engines that may be sent requests."""
    pending: tuple[str, ...] = ()
    """Names of pods that were never ready yet, sorted."""
    load: EngineLoad | None = None
    """Load of the ready engines with a fresh report; None while none has one."""
    traffic: GatewayTraffic | None = None
    """Traffic at the gateways; None unless every ready gateway has answered."""
    woken: bool = False
    """Whether a gateway has just asked for an engine."""
    readers_full: bool = False
    """Whether the engines that read the states of these engines have no room for more, so that states wait
    here."""
    silent: tuple[str, ...] = ()
    """Names of the first few ready pods, engines and gateways, that did not answer."""

    @property
    def whole(self) -> bool:
        """Whether the load of all ready engines is known; an unknown load is not zero."""
        load = self.load
        if self.desired == 0 and self.ready == 0:
            return True
        return load is not None and load.engines >= self.ready and not load.unrated
