"""`canary_decision`: decides in one pass about the step, engines, weight and end of a candidate. Pure.

Called by `canary_choice` while the engines' last ready revision serves and the spec's is another one. A step
begins with its engines: the weight of the step before stays in force until all of them are ready, so that no
candidate is judged by a load that is meant for more engines.
"""

import math
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from mamba_api.v1alpha1 import Canary
from mamba_api.v1alpha1.canary import CanaryShadow, CanaryStep
from mamba_api.v1alpha1.conditions import timestamp
from mamba_operator.canary.analysis import CanaryFigures
from mamba_operator.canary.state import SHADOW_STEP, CanaryRequest, CanaryState
from mamba_operator.objects.recorded_status import WorkloadState
from mamba_operator.rollout.rollback import CANARY_ABORTED

REQUESTS_POLL_SECONDS = 30.0
"""Longest time, in seconds, until the next pass while a step lasts, so that the status shows its numbers."""
Phase = Literal["Starting", "Running", "Waiting", "Paused", "Promoting"]


@dataclass(frozen=True, slots=True)
class CandidateFacts:
    """Holds what is known about a candidate when its next step is decided."""

    revision: str
    """Label of the revision of the spec."""
    recorded: CanaryState | None
    """State that the candidate's Deployment records; None = there is no candidate."""
    engines: WorkloadState
    """State of the candidate's Deployment."""
    runs_revision: bool
    """Whether the Deployment has the revision of the spec."""
    figures: CanaryFigures | None
    """Results of the comparison; None = there are none yet."""
    request: CanaryRequest | None
    """Request of a person about this candidate."""

    @property
    def own_figures(self) -> CanaryFigures | None:
        """Results of this candidate's comparison; None = there are none, or only an earlier candidate's."""
        figures = self.figures
        return figures if figures is not None and figures.revision == self.revision else None


@dataclass(frozen=True, slots=True)
class CopyShare:
    """The limits of the copies of requests that a candidate gets."""

    percent: int
    """Share of the conversations that are copied, in per cent."""
    max_in_flight: int
    """Largest number of copies of one gateway at once."""


@dataclass(frozen=True, slots=True)
class CanaryDecision:
    """Decision about a candidate."""

    state: CanaryState
    engines: int
    """Number of candidate engines that shall run."""
    weight: int
    """Share of the conversations that the candidate gets, in per cent."""
    phase: Phase
    copies: CopyShare | None = None
    """Copies of requests that the candidate gets; None = it gets none."""
    promoted: bool = False
    """Whether all engines get the candidate's revision now."""
    aborted: tuple[str, str] | None = None
    """Reason and message if the candidate ends; None = it does not."""
    requeue_after: float | None = None
    """Seconds until the decision changes by time alone."""


def canary_decision(
    canary: Canary, facts: CandidateFacts, replicas: int, *, paused: bool, now: datetime
) -> CanaryDecision:
    """Decide about the candidate.

    Args:
        canary: `spec.rollout.canary`.
        facts: the observed facts about the candidate.
        replicas: number of engines that are to run beside it.
        paused: whether `spec.rollout.pause` is set.
        now: the time, with a time zone.
    """
    state, figures, steps = _present_state(canary, facts), facts.own_figures, canary.steps
    step = stage_of(canary, state.step)
    verb = facts.request.verb if facts.request is not None else None
    held = paused or verb == "pause"
    alarm = figures.alarm if figures is not None else None
    ended = (CANARY_ABORTED, "a person aborted the canary") if verb == "abort" else alarm
    promoted = False
    if ended is None and not held:
        if verb == "promote":
            promoted = True
        elif replicas and _is_over(step, state, figures, facts.request, now):
            promoted = state.step + 1 == len(steps)
            state = state if promoted else CanaryState(state.revision, state.step + 1)
            step = stage_of(canary, state.step)
    size = candidate_engines(replicas, step.percent if isinstance(step, CanaryShadow) else step.weight)
    if not size:
        # A deployment that was scaled to zero answers nobody: its step begins anew once engines run again.
        state = replace(state, since=None)
    elif state.since is None and _has_engines(facts, size):
        state = replace(state, since=timestamp(now))
    return CanaryDecision(
        state,
        size,
        _bearable(_weight(canary, state), facts.engines.ready, replicas),
        _phase(step, state, held),
        copies=_copies(step, state),
        promoted=promoted,
        aborted=ended,
        requeue_after=_seconds_left(step, state, now),
    )


def stage_of(canary: Canary, step: int) -> CanaryStep | CanaryShadow:
    """Return the step with the index `step`, or the phase of copies before the first step."""
    return canary.shadow if step == SHADOW_STEP and canary.shadow is not None else canary.steps[max(step, 0)]


def _present_state(canary: Canary, facts: CandidateFacts) -> CanaryState:
    """Return the recorded state of the candidate, or the state at its beginning if none is recorded."""
    state = facts.recorded
    if state is None or state.revision != facts.revision:
        return CanaryState(facts.revision, 0 if canary.shadow is None else SHADOW_STEP)
    # Somebody may have removed steps from the spec meanwhile, or the phase of copies.
    if state.step == SHADOW_STEP and canary.shadow is None:
        return CanaryState(facts.revision)
    return replace(state, step=min(state.step, len(canary.steps) - 1))


def candidate_engines(replicas: int, weight: int) -> int:
    """Return the number of engines for a share of the traffic; at least one, unless no engine runs at all."""
    return max(1, math.ceil(replicas * weight / 100)) if replicas else 0


def _has_engines(facts: CandidateFacts, size: int) -> bool:
    engines = facts.engines
    return facts.runs_revision and engines.current and engines.updated >= size and engines.ready >= size > 0


def _weight(canary: Canary, state: CanaryState) -> int:
    step = state.step if state.since is not None else state.step - 1
    return canary.steps[step].weight if step >= 0 else 0


def _bearable(weight: int, ready: int, replicas: int) -> int:
    """Return the weight, or less of it while some of the engines that it is meant for are not ready.

    An autoscaler may have asked for more engines, of which only some have started, or an engine of the
    candidate may have ended: the other engines would get more than they can answer, and look slow.
    """
    needed = candidate_engines(replicas, weight)
    return weight if not weight or ready >= needed else max(1, weight * ready // needed)


def _copies(step: CanaryStep | CanaryShadow, state: CanaryState) -> CopyShare | None:
    if not isinstance(step, CanaryShadow) or state.since is None:
        return None
    return CopyShare(step.percent, step.max_in_flight)


def _is_over(
    step: CanaryStep | CanaryShadow,
    state: CanaryState,
    figures: CanaryFigures | None,
    request: CanaryRequest | None,
    now: datetime,
) -> bool:
    if (began := state.began) is None:
        return False
    if step.hold is None and step.requests is None:
        return request is not None and request.verb == "resume" and request.step == state.step + 1
    if step.hold is not None and (now - began).total_seconds() < step.hold.seconds:
        return False
    if step.requests is None:
        return True
    return figures is not None and figures.step == state.step and figures.requests >= step.requests


def _phase(step: CanaryStep | CanaryShadow, state: CanaryState, held: bool) -> Phase:
    if held:
        return "Paused"
    if state.since is None:
        return "Starting"
    return "Waiting" if step.hold is None and step.requests is None else "Running"


def _seconds_left(step: CanaryStep | CanaryShadow, state: CanaryState, now: datetime) -> float | None:
    if (began := state.began) is None:
        return None
    if step.hold is None:
        return REQUESTS_POLL_SECONDS
    left = step.hold.seconds - (now - began).total_seconds()
    return min(left, REQUESTS_POLL_SECONDS) if left > 0 else REQUESTS_POLL_SECONDS
