"""Which revision the engines shall have: that of the spec, or the last ready one where that has failed. Pure.

That a revision failed is noted on the engine Deployment, in the same write that takes its pods back: no lost
write can part the two. The note is about one revision; any other begins afresh. What counts as failed is
decided in `outcome`.
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
"""What a revision failed of that was ready and failed requests; no reason of a condition."""


@dataclass(frozen=True, slots=True)
class FailedRevision:
    """A revision that did not become ready, or failed requests, and was taken back."""

    digest: str
    """`EngineRevision.digest`."""
    revision: str
    """Label of its pods."""
    reason: str
    """Word of the condition Degraded for what was the matter with it, or `ERROR_RATE_ROSE`."""
    message: str

    def annotation(self) -> str:
        """How the annotation `failed-revision` says it."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class RevisionChoice:
    """What to run."""

    instead: EngineRevision | None = None
    """The revision to run in place of the spec's; None: that of the spec."""
    failed: FailedRevision | None = None
    """Why."""
    requeue_after: float | None = None
    """Seconds until a pod has had its trouble for too long."""
    queued: bool = False
    """The revision to run is the one that runs, until other roll-outs are over."""


def choose_revision(
    wanted: EngineRevision,
    ready: EngineRevision | None,
    engine: Manifest | None,
    pods: Sequence[Manifest],
    *,
    attempts: Mapping[str, Attempts],
    times: EngineTimes,
    paused: bool,
    now: datetime,
) -> RevisionChoice:
    """What to run.

    Args:
        wanted: what the spec asks for.
        ready: what was last ready, all of it.
        engine: the engine Deployment.
        pods: of the deployment.
        attempts: by revision, how requests fared while both served.
        times: since when engines fail.
        paused: whether the roll-out is to stay where it is.
        now: the time, with a time zone.
    """
    if engine is None or ready is None or ready.label == wanted.label:
        return RevisionChoice()
    noted = _noted(engine)
    if noted is not None and noted.digest == wanted.digest:
        return RevisionChoice(ready, noted)
    if paused or label_of(engine) != wanted.label:
        return RevisionChoice()
    outcome = rollout_outcome(_facts(wanted, ready, engine, pods, attempts, times, now))
    if outcome.taken_back is not None:
        return RevisionChoice(ready, FailedRevision(wanted.digest, wanted.label, *outcome.taken_back))
    return RevisionChoice(requeue_after=outcome.requeue_after)


def _facts(
    wanted: EngineRevision,
    ready: EngineRevision,
    engine: Manifest,
    pods: Sequence[Manifest],
    attempts: Mapping[str, Attempts],
    times: EngineTimes,
    now: datetime,
) -> RolloutFacts:
    """Read the roll-out from the cluster's objects."""
    those = [
        pod
        for pod in pods
        if is_engine(pod)
        and pod_revision(pod) == wanted.label
        and not (is_terminating(pod) or has_ended(pod))
    ]
    started = [pod for pod in those if not waits_for_node(pod)]
    late = [pod for pod in started if not answers(pod)]
    failing = [
        FailingEngine(node_of(pod), (now - since).total_seconds(), found.reason, found.message)
        for pod in late
        if (since := times.failing_since.get(name_of(pod))) is not None
        and (found := trouble([pod], now)) is not None
    ]
    nobody = Attempts()
    new, old = attempts.get(wanted.label, nobody), attempts.get(ready.label, nobody)
    said = f"it failed {new} requests, while {ready.label} beside it failed {old}"
    return RolloutFacts(
        started=len(started),
        serving=sum(map(answers, those)),
        failing=failing,
        rejected=(ERROR_RATE_ROSE, said) if fails_more(new, old) else None,
        overdue=_overdue(engine, those, now),
    )


def _overdue(engine: Manifest, pods: Sequence[Manifest], now: datetime) -> tuple[str, str] | None:
    """Say why nothing went on until the progress deadline, by the word that says most; None before it."""
    state = workload_state(engine)
    if not state.current or state.stuck is None:
        return None
    if (found := trouble(pods, now)) is not None:
        return found.reason, found.message
    if state.refused is not None:
        return Reason.PODS_REFUSED, advised_refusal(state.refused)
    return Reason.PROGRESS_DEADLINE_EXCEEDED, state.stuck


def is_ready(engine: Manifest | None, label: str | None, pods: Sequence[Manifest]) -> bool:
    """Tell whether all engines are of that revision and answer: it can be gone back to.

    Engines for which there is no room say nothing against it, as long as any answers: a fleet that wants more
    engines than the cluster has room for would never have been ready.
    """
    if engine is None or label_of(engine) != label:
        return False
    state = workload_state(engine)
    without_room = sum(is_engine(pod) and not is_terminating(pod) and waits_for_node(pod) for pod in pods)
    wanted = max(state.wanted, 1)
    return (
        state.current
        and state.updated == state.replicas
        and state.ready == state.replicas - without_room > 0
        and (state.replicas >= wanted or state.refused is not None)
    )


def _noted(engine: Manifest) -> FailedRevision | None:
    text = annotation(engine, names.ANNOTATION_FAILED_REVISION)
    try:
        noted = FailedRevision(**json.loads(text)) if text is not None else None
    except (TypeError, ValueError):
        return None
    return (
        noted if noted is not None and all(isinstance(one, str) for one in asdict(noted).values()) else None
    )
