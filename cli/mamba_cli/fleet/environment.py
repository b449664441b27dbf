"""Environment of a simulated fleet: how engines start, fail and end, and how many may exist."""

from dataclasses import dataclass, field

from mamba_cli.fleet.machine import Machine


@dataclass(frozen=True, slots=True)
class FleetEnvironment:
    """Environment of a fleet, constant during a simulation."""

    cold_start: float = 120.0
    """Seconds from a pod's creation to its readiness, on average."""
    cold_start_spread: float = 0.1
    """Largest deviation of a start from `cold_start`, as a share of it."""
    failures: float = 0.0
    """Failures without notice, per engine and hour."""
    spot: float = 0.0
    """Machines that are taken away with a notice of two minutes, per engine and hour."""
    least: int = 1
    most: int = 64
    initial: int = 1
    """Engines that are ready when the simulation begins."""
    machine: Machine = field(default_factory=Machine)
