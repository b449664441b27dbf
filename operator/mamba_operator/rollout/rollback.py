"""Choice of the engines' revision: that of the spec, or the last ready one where that has failed. Pure.

The failure of a revision is noted on the engine Deployment, in the same write that replaces its pods, so
that no lost write can separate the two. The note is about one revision; any other revision starts without
it. `outcome` decides which revisions have failed.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from mamba_api import names
from mamba_api.v1alpha1.conditions import Reason
from mamba_operator.objects.manifest import Manifest, annotation, is_terminating, name_of
from mamba_operator.objects.pod_trouble import (
    advised_refusal,
    answers,
    has_ended,
    is_engine,
    node_of,
    trouble,
    waits_for_node,
)
from mamba_operator.objects.workload_state import workload_state
from mamba_operator.render.revision import EngineRevision, label_of, pod_revision
from mamba_operator.rollout.attempts import Attempts, fails_more
from mamba_operator.rollout.engine_history import EngineTimes
from mamba_operator.rollout.outcome import FailingEngine, RolloutFacts, rollout_outcome

ERROR_RATE_ROSE = "ErrorRateRose"
"""Failure of a revision that was ready and failed requests; not a reason of a condition."""


@dataclass(frozen=True, slots=True)
class FailedRevision:
    """A revision that did not become ready, or failed requests, and was taken back."""

    digest: str
    """`EngineRevision.digest`."""
    revision: str
    """Label `revision` of its pods."""
    reason: str
    """Reason of the condition Degraded for its failure, or `ERROR_RATE_ROSE`."""
    message: str

    def annotation(self) -> str:
        """Return the text of the annotation `failed-revision`."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class RevisionChoice:
    """The revision that the engines shall have."""

    instead: EngineRevision | None = None
    """Revision to run in place of the spec's; None = the spec's."""
    failed: FailedRevision | None = None
    """The failed revision that is the reason for `instead`."""
    requeue_after: float | None = None
    """Seconds until a pod has been failing for too long."""
    queued: bool = False
    """Whether the running revision stays until other roll-outs have ended."""


def choose_revision(
    spec_revision: EngineRevision,
    ready: EngineRevision | None,
    engine: Manifest | None,
    pods: Sequence[Manifest],
    *,
    attempts: Mapping[str, Attempts],
    times: EngineTimes,
    paused: bool,
    now: datetime,
) -> RevisionChoice:
    """Choose the revision that the engines shall have.

    Args:
        spec_revision: the revision of the spec.
        ready: the revision that was last ready as a whole.
        engine: the engine Deployment.
        pods: the pods of the deployment.
        attempts: attempts by revision while both served.
        times: times since which engines fail.
        paused: whether the roll-out shall stay where it is.
        now: the time, with a time zone.
    """
    if engine is None or ready is None or ready.label == spec_revision.label:
        return RevisionChoice()
    noted = _noted(engine)
    if noted is not None and noted.digest == spec_revision.digest:
        return RevisionChoice(ready, noted)
    if paused or label_of(engine) != spec_revision.label:
        return RevisionChoice()
    outcome = rollout_outcome(_facts(spec_revision, ready, engine, pods, attempts, times, now))
    if outcome.taken_back is not None:
        return RevisionChoice(
            ready, FailedRevision(spec_revision.digest, spec_revision.label, *outcome.taken_back)
        )
    return RevisionChoice(requeue_after=outcome.requeue_after)


def _facts(
    spec_revision: EngineRevision,
    ready: EngineRevision,
    engine: Manifest,
    pods: Sequence[Manifest],
    attempts: Mapping[str, Attempts],
    times: EngineTimes,
    now: datetime,
) -> RolloutFacts:
    """Return the state of the roll-out, read from the cluster's objects."""
    engines = [
        pod
        for pod in pods
        if is_engine(pod)
        and pod_revision(pod) == spec_revision.label
        and not (is_terminating(pod) or has_ended(pod))
    ]
    started = [pod for pod in engines if not waits_for_node(pod)]
    late = [pod for pod in started if not answers(pod)]
    failing = [
        FailingEngine(node_of(pod), (now - since).total_seconds(), pod_problem.reason, pod_problem.message)
        for pod in late
        if (since := times.failing_since.get(name_of(pod))) is not None
        and (pod_problem := trouble([pod], now)) is not None
    ]
    none = Attempts()
    new, old = attempts.get(spec_revision.label, none), attempts.get(ready.label, none)
    message = f"it failed {new} requests, while {ready.label} failed {old} at the same time"
    return RolloutFacts(
        started=len(started),
        serving=sum(map(answers, engines)),
        failing=failing,
        rejected=(ERROR_RATE_ROSE, message) if fails_more(new, old) else None,
        overdue=_overdue(engine, engines, now),
    )


def _overdue(engine: Manifest, pods: Sequence[Manifest], now: datetime) -> tuple[str, str] | None:
    """Return the most specific reason and message for a passed progress deadline; None before it."""
    state = workload_state(engine)
    if not state.current or state.stuck is None:
        return None
    if (pod_problem := trouble(pods, now)) is not None:
        return pod_problem.reason, pod_problem.message
    if state.refused is not None:
        return Reason.PODS_REFUSED, advised_refusal(state.refused)
    return Reason.PROGRESS_DEADLINE_EXCEEDED, state.stuck


def is_ready(engine: Manifest | None, label: str | None, pods: Sequence[Manifest]) -> bool:
    """Return whether all engines have that revision and answer, so that a later one can return to it.

    Engines without room do not count as long as any engine answers: a fleet with more engines than the
    cluster has room for would otherwise never be ready.
    """
    if engine is None or label_of(engine) != label:
        return False
    state = workload_state(engine)
    without_room = sum(is_engine(pod) and not is_terminating(pod) and waits_for_node(pod) for pod in pods)
    engine_count = max(state.desired, 1)
    return (
        state.current
        and state.updated == state.replicas
        and state.ready == state.replicas - without_room > 0
        and (state.replicas >= engine_count or state.refused is not None)
    )


def _noted(engine: Manifest) -> FailedRevision | None:
    text = annotation(engine, names.ANNOTATION_FAILED_REVISION)
    try:
        noted = FailedRevision(**json.loads(text)) if text is not None else None
    except (TypeError, ValueError):
        return None
    return (
        noted
        if noted is not None and all(isinstance(value, str) for value in asdict(noted).values())
        else None
    )
