"""Life of an engine's pod: starting, ready, draining, gone."""

from dataclasses import dataclass
from typing import Literal

from mamba_api.choices import Role
from mamba_cli.fleet.engine import SimulatedEngine

Phase = Literal["starting", "ready", "draining", "gone"]


@dataclass(slots=True, eq=False)
class Pod:
    """A simulated pod with one engine, which holds its GPU from `created` to `deleted`."""

    name: str
    created: float
    engine: SimulatedEngine
    role: Role = "unified"
    phase: Phase = "starting"
    deleted: float | None = None

    def gpu_seconds(self, until: float) -> float:
        """Return the seconds for which the pod held its GPU before `until`."""
        end = until if self.deleted is None else min(self.deleted, until)
        return max(0.0, end - self.created)
