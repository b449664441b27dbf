"""`FleetSample`: the state of a fleet that an autoscaler reads at one moment. Frozen."""

from dataclasses import dataclass

from mamba_cli.fleet.engine import EngineCounters


@dataclass(frozen=True, slots=True)
class EngineSample:
    """Numbers about one ready engine, as a scaler sees them."""

    name: str
    running: int
    waiting: int
    usage: float
    """Share of the arena in use."""
    slots_used: float
    pages_used: float
    tokens: int
    """Tokens of the running sequences."""
    waiting_tokens: float
    """Prompt tokens still to be computed."""
    decode_seconds: float
    """Seconds of a step that only decodes."""
    totals: EngineCounters
    credits: int = 0
    """States that the engine can take from other engines now."""


@dataclass(frozen=True, slots=True)
class FleetSample:
    """Numbers about the whole fleet at one moment, as a scaler sees them."""

    at: float
    desired: int
    """Number of engines that the autoscaler requested."""
    ready: tuple[EngineSample, ...]
    """Engines that accept requests."""
    pending: tuple[str, ...]
    """Names of engines that are starting."""
    in_flight: int
    unrouted: int
    """Requests that wait at the gateway because no engine is ready."""
    arrivals: int
    """Requests since the beginning of the simulation."""
    readers_full: bool = False
    """Whether the engines that read the states of these engines have no room for more."""

    @property
    def supply(self) -> int:
        """Number of engines that are ready or starting."""
        return len(self.ready) + len(self.pending)
