"""`canary_choice`: decides whether engines keep their revision while a candidate is tried beside them. Pure.

Called by `engine_rollout` for a spec that asks for canaries. Until the candidate is promoted, the engine
Deployment keeps the ready revision. Then the candidate's revision is rolled out like any other, and the
candidate serves until all engines are ready.
"""

from dataclasses import dataclass, replace
from datetime import datetime

from mamba_api.v1alpha1 import Canary, CanaryComparison, CanaryStatus
from mamba_operator.canary.analysis import CanaryFigures
from mamba_operator.canary.decision import CanaryDecision, CandidateFacts, canary_decision
from mamba_operator.canary.state import request_in, state_in
from mamba_operator.objects.manifest import Manifest, label_of
from mamba_operator.objects.recorded_status import WorkloadState, workload_state
from mamba_operator.observation.snapshot import Snapshot
from mamba_operator.render.context import Candidate, Context, EngineRevision
from mamba_operator.rollout.rollback import (
    FailedRevision,
    RevisionChoice,
    is_ready,
    rollout_facts,
    rollout_outcome,
)


@dataclass(frozen=True, slots=True)
class CanaryPass:
    """Decision of one pass about a canary, with the facts that its children and the status need."""

    decision: CanaryDecision
    revision: EngineRevision
    """The candidate's revision."""
    stable: str
    """Label of the revision beside the candidate."""
    steps: int
    engines: WorkloadState
    figures: CanaryFigures | None

    def candidate(self) -> Candidate:
        """Return the facts that the children of the candidate are rendered from."""
        decision, copies = self.decision, self.decision.copies
        return Candidate(
            self.revision,
            decision.engines,
            decision.weight,
            decision.state.annotation(),
            copies.percent if copies is not None else 0,
            copies.max_in_flight if copies is not None else 0,
        )

    def status(self) -> CanaryStatus:
        """Return `status.canary`."""
        decision, figures = self.decision, self.figures
        current = figures if figures is not None and figures.step == decision.state.step else None
        comparisons = current.comparisons if current is not None else ()
        return CanaryStatus(
            revision=self.revision.label,
            stable_revision=self.stable,
            phase=decision.phase,
            step=decision.state.step + 1,
            steps=self.steps,
            weight=decision.weight,
            shadow=decision.copies.percent if decision.copies is not None else 0,
            engines=f"{self.engines.ready}/{decision.engines}",
            requests=current.requests if current is not None else 0,
            verdict=_verdict(current),
            comparisons=[
                CanaryComparison(
                    measure=one.measure, candidate=one.candidate, stable=one.stable, looks=one.looks
                )
                for one in comparisons
            ],
        )


def _verdict(figures: CanaryFigures | None) -> str:
    if figures is None:
        return "no request of this step has been compared yet"
    if figures.alarm is not None:
        return f"the candidate is worse: {figures.alarm[1]}"
    if not any(one.looks for one in figures.comparisons):
        return "the candidate has answered too few requests for a comparison"
    return "the comparison has found nothing against the candidate"


def has_candidate(context: Context, snapshot: Snapshot, revision: EngineRevision) -> bool:
    """Return whether a candidate of `revision` runs."""
    state = state_in(snapshot.child("Deployment", context.children.candidate))
    return state is not None and state.revision == revision.label


def canary_choice(
    canary: Canary,
    context: Context,
    snapshot: Snapshot,
    choice: RevisionChoice,
    revision: EngineRevision,
    ready: EngineRevision | None,
    now: datetime,
) -> tuple[RevisionChoice, CanaryPass | None]:
    """Return the choice of the engines' revision, and the canary under way; None = there is none.

    Args:
        canary: `spec.rollout.canary`.
        context: everything that children depend on.
        snapshot: observed objects, with the pods of the engines' role.
        choice: the choice without a canary. Only the revision of the spec can be tried by one.
        revision: the revision of the spec.
        ready: the last ready revision; None = there is none.
        now: the time, with a time zone.
    """
    engine = snapshot.child("Deployment", context.children.engine)
    if ready is None or engine is None or choice.instead is not None:
        return choice, None
    if ready.label == revision.label:
        return choice, None
    child = snapshot.child("Deployment", context.children.candidate)
    paused = context.deployment.spec.rollout.pause
    facts = CandidateFacts(
        revision.label,
        state_in(child),
        engines := workload_state(child),
        child is not None and label_of(child) == revision.label,
        snapshot.canary,
        request_in(snapshot.owner or {}, revision.label),
    )
    decision = canary_decision(canary, facts, context.replicas, paused=paused, now=now)
    current = CanaryPass(decision, revision, ready.label, len(canary.steps), engines, snapshot.canary)
    if label_of(engine) == revision.label:
        return choice, _promoting(current, snapshot, engine)
    if child is None and paused:
        # Engines keep their revision, and no candidate starts.
        return RevisionChoice(ready), None
    failed = decision.aborted or _failure(context, snapshot, revision, ready, child, now)
    if failed is not None:
        return RevisionChoice(ready, FailedRevision(revision.digest, revision.label, *failed)), None
    if decision.promoted:
        return choice, _promoting(current, snapshot, engine)
    return RevisionChoice(ready, requeue_after=decision.requeue_after), current


def _promoting(current: CanaryPass, snapshot: Snapshot, engine: Manifest) -> CanaryPass | None:
    """Return the canary while all engines are replaced by its revision.

    The result is None if no such candidate runs any more, or all engines are ready.
    """
    recorded = state_in(snapshot.child("Deployment", snapshot.names.candidate))
    label = current.revision.label
    if recorded is None or recorded.revision != label or is_ready(engine, label, snapshot.pods):
        return None
    # The step stays, so that the candidate gets no more than its engines are for.
    return replace(current, decision=replace(current.decision, phase="Promoting", copies=None))


def _failure(
    context: Context,
    snapshot: Snapshot,
    revision: EngineRevision,
    ready: EngineRevision,
    child: Manifest | None,
    now: datetime,
) -> tuple[str, str] | None:
    """Return reason and message why the candidate's engines do not start; None = they do, or still may.

    `child` is the candidate's Deployment, and `ready` the last ready revision, to which engines would return.
    """
    if child is None or label_of(child) != revision.label:
        return None
    facts = rollout_facts(revision, ready, child, snapshot.candidates, {}, snapshot.engine_times, now)
    return rollout_outcome(facts).taken_back
