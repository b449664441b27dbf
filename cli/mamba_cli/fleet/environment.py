"""What surrounds a simulated fleet: how its engines start, fail and go, how many there may be."""

from dataclasses import dataclass, field

from mamba_cli.fleet.machine import Machine


@dataclass(frozen=True, slots=True)
class FleetEnvironment:
    """What surrounds the fleet."""

    cold_start: float = 120.0
    """Seconds from a pod's creation to its readiness, on average."""
    cold_start_spread: float = 0.1
    """By so much of it starts differ, up or down, at most."""
    failures: float = 0.0
    """Engines that die without notice, per engine and hour."""
    spot: float = 0.0
    """Machines that go with a notice of two minutes, per engine and hour."""
    least: int = 1
    most: int = 64
    initial: int = 1
    """Engines that are ready when it begins."""
    machine: Machine = field(default_factory=Machine)
