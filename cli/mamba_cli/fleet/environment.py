"""Environment of a simulated fleet: starts, failures and ends of engines, and the cores that they share."""

import math
from dataclasses import dataclass, field
from random import Random


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that the engines of a fleet run on: its cores, and the transit times of requests.

    By default, requests reach engines at once, and every engine has its own cores.
    """

    cores: float = math.inf
    """Cores that all engines share; infinity = each has its own."""
    used: float = 1.0
    """Cores that a request in transit, or an engine with work, keeps busy."""
    transit_seconds: float = 0.0
    """Fixed part of the time to the first token outside of engines: gateway, API, first chunk."""
    transit_token_seconds: float = 0.0
    """Seconds for each token of the prompt, resumed tokens included, to read, check and look it up."""
    jitter: tuple[float, ...] = ()
    """Deviations of the transit time in seconds, all equally likely."""

    @property
    def shared(self) -> bool:
        """Whether the work of one engine can slow down another."""
        return math.isfinite(self.cores)

    def slowness(self, active: int) -> float:
        """Return the factor by which `active` engines and requests in transit slow down on shared cores."""
        return max(1.0, active * self.used / self.cores)

    def transit(self, tokens: int, rng: Random) -> float:
        """Return the transit time in seconds of a request whose prompt has `tokens` tokens."""
        jitter = rng.choice(self.jitter) if self.jitter else 0.0
        return max(0.0, self.transit_seconds + tokens * self.transit_token_seconds + jitter)


@dataclass(frozen=True, slots=True)
class FleetEnvironment:
    """Conditions of a fleet that stay the same during one simulation."""

    cold_start: float = 120.0
    """Seconds from a pod's creation to its readiness, on average."""
    cold_start_spread: float = 0.1
    """Largest deviation of a start from `cold_start`, as a share of it."""
    failures: float = 0.0
    """Failures without notice, per engine and hour."""
    spot: float = 0.0
    """Machines that are taken away with a notice of two minutes, per engine and hour."""
    least: int = 1
    """Smallest number of engines that a scaler may ask for."""
    most: int = 64
    """Largest number of engines that a scaler may ask for."""
    initial: int = 1
    """Engines that are ready when the simulation begins."""
    machine: Machine = field(default_factory=Machine)
