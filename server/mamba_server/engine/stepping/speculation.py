"""`Speculation`: what the core needs of drafts; their source decides when they pay.

A `DraftSwitch` stands between the core and the source: a wrong answer switches drafts off until a person
switches them on again.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from mamba_server.cache import Tokens
from mamba_server.engine.scheduling.draft_rows import Proposals
from mamba_server.engine.sequences.schedule import Schedule
from mamba_server.engine.sequences.sequence import Sequence
from mamba_telemetry.logs import get_logger

log = get_logger(__name__)
TIMED_EVERY = 8
"""Number of steps, outside a rest and without drafts, of which one is timed: the clock is a system call."""
TIMED_OF_REST = 2
"""Number of steps at the end of a rest that are timed, as steps of an engine without drafts."""
CLOCK_READINGS = 100
"""Readings, each of some hundred nanoseconds, within which a clock has to tick."""


class DraftSource(Proposals, Protocol):
    """Proposes drafts, and learns from the core how many of their tokens were right."""

    def wanted(self) -> bool:
        """Return whether the next step should have drafts, for which the launched step is committed first."""
        ...

    def checked(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """Record that the model sampled `accepted` of the `drafted` tokens of one draft."""
        ...

    def step_ended(self, schedule: Schedule, seconds: float) -> None:
        """Record that a step was committed, which took `seconds`; 0 = it was not timed.

        The time begins with the planning of the step, or with the end of the step before if that came later.
        """
        ...

    def counters(self) -> dict[str, float]:
        """Return counts since the start."""
        ...


class DraftSwitch:
    """Switches a `DraftSource` on and off; while it is off, nothing is proposed.

    Steps still compute the drafts that were accepted before into states.
    """

    def __init__(self, source: DraftSource) -> None:
        self.source = source
        self.most, self.rest = source.most, source.rest
        self.reason = ""
        """Why there are no drafts; "" = there are."""

    @property
    def is_on(self) -> bool:
        return not self.reason

    def switch_off(self, reason: str) -> None:
        """Propose nothing from the next step on; if drafts are off already, their earlier `reason` stays."""
        if self.is_on:
            self.reason = reason
            log.error("speculation is off", reason=reason)

    def switch_on(self) -> None:
        """Let the source propose again."""
        if not self.is_on:
            log.warning("speculation is on again", reason=self.reason)
        self.reason = ""

    def wanted(self) -> bool:
        """Return whether the next step should have drafts."""
        return self.is_on and self.source.wanted()

    def propose(self, decodes: list[Sequence]) -> dict[int, Tokens]:
        """Return the proposals of the source; none while it is off."""
        return self.source.propose(decodes) if self.is_on else {}

    def checked(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """Report to the source that `accepted` of the `drafted` tokens of a draft were right."""
        self.source.checked(sequence, drafted, accepted)

    def step_ended(self, schedule: Schedule, seconds: float) -> None:
        """Report to the source that a step was committed, as `DraftSource.step_ended` describes it."""
        self.source.step_ended(schedule, seconds)

    def counters(self) -> dict[str, float]:
        """Return the counters of the source."""
        return self.source.counters()


@dataclass(slots=True)
class Speculation:
    """Drafts of one engine.

    `absorb(row, lane, count)` returns work that computes the first `count` inputs of a lane into the row's
    state, outside a step. `work_clock` returns the time that this thread has computed, in seconds, where
    steps run in this thread, so that the worth of drafts does not depend on other programs of the machine;
    None = steps take what the engine's clock says.
    """

    drafts: DraftSwitch
    absorb: Callable[[int, int, int], Callable[[], object]]
    work_clock: Callable[[], float] | None = None
    _began: float = 0.0
    _steps: int = 0

    def step_began(self) -> None:
        """Remember when the planning of a step began; without drafts only of some steps."""
        self._began = 0.0
        if self.drafts.rest.steps > TIMED_OF_REST or self.work_clock is None:
            return
        self._steps += 1
        if self.drafts.rest.steps or self._steps % TIMED_EVERY == 0 or self.drafts.wanted():
            self._began = self.work_clock()

    def step_ended(self, schedule: Schedule, seconds: float) -> None:
        """Report a step to the source of drafts, unless it had no drafts and was not timed.

        `seconds` is its time by the engine's clock.
        """
        if self.work_clock is None:
            if self.drafts.rest.steps <= TIMED_OF_REST or schedule.drafts or schedule.absorbed:
                self.drafts.step_ended(schedule, seconds)
        elif self._began or schedule.drafts or schedule.absorbed:
            self.drafts.step_ended(schedule, self.work_clock() - self._began if self._began else 0.0)


def work_clock() -> Callable[[], float] | None:
    """Return the clock of the work of a thread; None where it ticks too rarely to time a step."""
    began = time.thread_time()
    ticks = any(time.thread_time() > began for _ in range(CLOCK_READINGS))
    return time.thread_time if ticks else None
