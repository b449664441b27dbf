"""`FleetSample`: the state of the fleet that an autoscaler gets at one moment. Frozen."""

from dataclasses import dataclass

from mamba_cli.fleet.engine import EngineCounters


@dataclass(frozen=True, slots=True)
class EngineSample:
    """One ready engine, by its metrics."""

    name: str
    running: int
    waiting: int
    usage: float
    """Of the arena."""
    slots_used: float
    pages_used: float
    tokens: int
    """Tokens of the sequences that it runs."""
    waiting_tokens: float
    """Prompt tokens that are to be computed."""
    decode_seconds: float
    """Of a step that only decodes."""
    totals: EngineCounters


@dataclass(frozen=True, slots=True)
class FleetSample:
    """All of it."""

    at: float
    desired: int
    """Engines that are asked for."""
    ready: tuple[EngineSample, ...]
    """Those that take requests."""
    pending: tuple[str, ...]
    """Names of those that start."""
    in_flight: int
    unrouted: int
    """Requests that wait at the gateway for any engine."""
    arrivals: int
    """Since the beginning."""

    @property
    def supply(self) -> int:
        """Engines that are ready or will be."""
        return len(self.ready) + len(self.pending)
