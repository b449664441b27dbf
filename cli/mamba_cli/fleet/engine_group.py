"""`EngineGroup`: the engines of one role in a simulated fleet, with the autoscaler that sets their number."""

from dataclasses import dataclass, field
from typing import Protocol

from mamba_api.choices import Role
from mamba_cli.fleet.environment import FleetEnvironment
from mamba_cli.fleet.sample import FleetSample


class Scaler(Protocol):
    """Decides how many engines there should be, every `period` seconds.

    It sees a sample that is `delay` seconds old.
    """

    period: float
    delay: float

    def target(self, sample: FleetSample) -> int:
        """Return the desired number of engines."""
        ...


class FixedSize:
    """Scaler that always requests the same number of engines."""

    period, delay = 60.0, 0.0

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas

    def target(self, sample: FleetSample) -> int:
        """Return the constant number of engines."""
        del sample
        return self._replicas


@dataclass(slots=True)
class ScalingHistory:
    """Numbers of desired and of existing engines over time."""

    targets: list[tuple[float, int]]
    """(second, desired engines) of each change."""
    supply: list[tuple[float, int, int]] = field(default_factory=list)
    """(second, ready engines, starting engines) at each decision."""


@dataclass(slots=True)
class EngineGroup:
    """The engines of one role, and their autoscaler.

    `conditions` has the bounds of the number of engines, and the number at the beginning.
    """

    role: Role
    scaler: Scaler
    conditions: FleetEnvironment
    ttft: float
    """Seconds after which a first token, or the state of a prompt, is late."""
    target: int = field(init=False)
    """Desired number of engines."""
    history: ScalingHistory = field(init=False)

    def __post_init__(self) -> None:
        self.target = self.conditions.initial
        self.history = ScalingHistory([(0.0, self.target)])

    def decide(self, sample: FleetSample) -> int:
        """Return the desired number of engines within the bounds, and keep it in the history."""
        target = min(max(self.scaler.target(sample), self.conditions.least), self.conditions.most)
        if target != self.target:
            self.target = target
            self.history.targets.append((sample.at + self.scaler.delay, target))
        return target
