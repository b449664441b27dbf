"""`Speculation`: what the core needs of drafts; their source decides when they pay."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from mamba_server.engine.scheduling.draft_rows import Proposals
from mamba_server.engine.sequences.schedule import Schedule
from mamba_server.engine.sequences.sequence import Sequence


class DraftSource(Proposals, Protocol):
    """Source of drafts that hears what became of them."""

    def wanted(self) -> bool:
        """Return whether the next step should have drafts, for which the launched step is committed first."""
        ...

    def checked(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """Record that `accepted` of `drafted` tokens of one draft were what the model sampled."""
        ...

    def step_ended(self, schedule: Schedule, seconds: float) -> None:
        """Record that a step was committed whole, `seconds` after the one before it or its launch."""
        ...

    def counters(self) -> dict[str, float]:
        """Return counts since the start."""
        ...


@dataclass(frozen=True, slots=True)
class Speculation:
    """Drafts of one engine. `absorb(row, lane, count)` returns the work of an absorption outside a step."""

    drafts: DraftSource
    absorb: Callable[[int, int, int], Callable[[], object]]
