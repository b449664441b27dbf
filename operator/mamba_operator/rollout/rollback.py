"""Choice of the engines' revision: that of the spec, or the last ready one if that has failed. Pure.

The failure of a revision is recorded on the engine Deployment, in the same write that replaces its pods, so
that no lost write can separate the two. The record is about one revision; any other revision starts without
it.

A revision is taken back for failures that it causes: all of its engines that have a node fail, or most of
them do on two nodes or more. If one engine fails while others serve, the cause is its node, and the revision
stays. Missing room or a full quota keeps an engine from starting but says nothing about the revision, and
neither do engines that are slow but do not fail. For these, the revision is taken back only at the progress
deadline, and only if none of its engines serves.

The status of a pod does not say when a pull of its image first failed, and nothing records when another pod
ended. The operator remembers both while it runs (`EngineHistory`). After a restart it counts from its first
observation, so it waits longer, and never shorter.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from mamba_api import names
from mamba_api.v1alpha1.conditions import Reason
from mamba_operator.objects.manifest import (
    Manifest,
    annotation,
    is_terminating,
    label_of,
    metadata,
    name_of,
    pod_revision,
)
from mamba_operator.objects.pod_trouble import (
    advised_refusal,
    answers,
    has_ended,
    has_place,
    is_engine,
    node_of,
    trouble,
    waits_for_node,
)
from mamba_operator.objects.recorded_status import workload_state
from mamba_operator.render.context import EngineRevision
from mamba_operator.rollout.attempts import Attempts, fails_more

FATAL = frozenset(
    {
        Reason.IMAGE_PULL_FAILED,
        Reason.CONTAINER_NOT_CREATED,
        Reason.MODEL_NOT_LOADED,
        Reason.ADAPTER_NOT_LOADED,
        Reason.ENGINE_CRASHING,
        Reason.OUT_OF_MEMORY,
    }
)
"""Reasons that the pod itself causes. Others, such as missing room, wait for the progress deadline."""


@dataclass(frozen=True, slots=True)
class EngineTimes:
    """The times since which engines of one deployment have been failing, and since which none has changed."""

    failing_since: Mapping[str, datetime] = field(default_factory=dict)
    """Time since which each failing engine pod has failed without interruption, by the name of the pod."""
    still_since: datetime | None = None
    """Time since which no engine pod was added, removed, assigned to a node, or changed its readiness."""


class EngineHistory:
    """Remembers when the engines of one deployment last changed, and since when they fail."""

    def __init__(self) -> None:
        self._failing: dict[str, datetime] = {}
        self._shape: Any = None
        self._still_since: datetime | None = None

    def observe(self, pods: Sequence[Manifest], now: datetime) -> EngineTimes:
        """Record the state of the deployment's pods, and return the times."""
        engines = [pod for pod in pods if is_engine(pod)]
        failing = [
            name_of(pod)
            for pod in engines
            if (pod_problem := trouble([pod], now)) and pod_problem.reason in FATAL
        ]
        self._failing = {name: self._failing.get(name, now) for name in failing}
        shape = {
            (name_of(pod), metadata(pod).get("uid"), has_place(pod), answers(pod), is_terminating(pod))
            for pod in engines
            if not has_ended(pod)
        }
        if shape != self._shape:
            self._shape, self._still_since = shape, now
        return EngineTimes(dict(self._failing), self._still_since)


MAX_FAILING_SECONDS = 60.0
"""Seconds that a new engine may fail without interruption, since a registry or a Secret may become
available."""


@dataclass(frozen=True, slots=True)
class FailingEngine:
    """An engine of the new revision that cannot start, although it has room."""

    node: str
    """Name of its node; empty while it is unknown."""
    seconds: float
    """Seconds for which it has been failing without interruption."""
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class RolloutFacts:
    """Holds what is known of a roll-out when it is decided whether the new revision stays."""

    started: int
    """Engines of the new revision that have a node."""
    serving: int
    """Engines of the new revision that answer."""
    failing: Sequence[FailingEngine] = ()
    """Started engines of the new revision that fail and do not answer."""
    rejected: tuple[str, str] | None = None
    """Reason and message if requests fail significantly more at the new revision than at the old one."""
    overdue: tuple[str, str] | None = None
    """Reason and message once the progress deadline has passed."""


@dataclass(frozen=True, slots=True)
class RolloutOutcome:
    """Decision whether the new revision stays, with the reason if it does not."""

    taken_back: tuple[str, str] | None = None
    """Reason and message if the new revision is taken back; None = it stays."""
    requeue_after: float | None = None
    """Seconds until an engine has been failing for `MAX_FAILING_SECONDS`."""


def rollout_outcome(facts: RolloutFacts) -> RolloutOutcome:
    """Decide whether the new revision stays. This is the only place where that is decided."""
    if facts.rejected is not None:
        return RolloutOutcome(taken_back=facts.rejected)
    lost = [engine for engine in facts.failing if engine.seconds >= MAX_FAILING_SECONDS]
    if lost and _is_the_revision(len(lost), {engine.node for engine in lost}, facts.started):
        return RolloutOutcome(taken_back=(lost[0].reason, lost[0].message))
    if facts.overdue is not None and facts.serving == 0:
        return RolloutOutcome(taken_back=facts.overdue)
    remaining = [MAX_FAILING_SECONDS - engine.seconds for engine in facts.failing]
    return RolloutOutcome(requeue_after=min((seconds for seconds in remaining if seconds > 0), default=None))


def _is_the_revision(bad: int, nodes: set[str], started: int) -> bool:
    """Return whether the revision, and not a node, makes `bad` of `started` engines on `nodes` fail."""
    return bad >= started or (2 * bad > started and len(nodes) > 1)


ERROR_RATE_ROSE = "ErrorRateRose"
"""Failure of a revision that was ready and failed requests; not a reason of a condition."""
TTFT_ROSE, TPOT_ROSE = "TtftRose", "TpotRose"
"""Failures of a canary that was ready and answered more slowly."""
ANSWERS_DIFFER = "AnswersDiffer"
"""Failure of a canary that wrote other texts than the revision beside it, for copies of the same requests."""
CANARY_ABORTED = "CanaryAborted"
"""Failure of a canary that a person aborted."""
OF_READY_REVISIONS = frozenset({ERROR_RATE_ROSE, TTFT_ROSE, TPOT_ROSE, ANSWERS_DIFFER, CANARY_ABORTED})
"""Failures of revisions that were ready."""


@dataclass(frozen=True, slots=True)
class FailedRevision:
    """Revision that was taken back, because it did not become ready, was worse, or was aborted."""

    digest: str
    """Hash of the revision (`EngineRevision.digest`)."""
    revision: str
    """Value of the label `revision` of its pods."""
    reason: str
    """Reason of the condition Degraded for its failure, or one of `OF_READY_REVISIONS`."""
    message: str

    def annotation(self) -> str:
        """Return the text of the annotation `failed-revision`."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class RevisionChoice:
    """The revision that the engines are to have, with the reason if it is not the spec's."""

    instead: EngineRevision | None = None
    """Revision to run in place of the spec's; None = the spec's."""
    failed: FailedRevision | None = None
    """The failed revision that is the reason for `instead`."""
    requeue_after: float | None = None
    """Seconds until the choice may change by time alone; None = it does not."""
    queued: bool = False
    """Whether the engines keep their revision until other roll-outs have ended."""


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
    """Choose the revision that the engines are to have.

    Args:
        spec_revision: the revision of the spec.
        ready: the last revision of which all engines were ready; None = there is none.
        engine: the engine Deployment.
        pods: the pods of the deployment.
        attempts: attempts of requests by revision, from the time in which both served.
        times: times since which engines have been failing.
        paused: whether `spec.rollout.pause` is set.
        now: the time, with a time zone.
    """
    if engine is None or ready is None or ready.label == spec_revision.label:
        return RevisionChoice()
    noted = _noted(engine)
    if noted is not None and noted.digest == spec_revision.digest:
        return RevisionChoice(ready, noted)
    if paused or label_of(engine) != spec_revision.label:
        return RevisionChoice()
    outcome = rollout_outcome(rollout_facts(spec_revision, ready, engine, pods, attempts, times, now))
    if outcome.taken_back is not None:
        return RevisionChoice(
            ready, FailedRevision(spec_revision.digest, spec_revision.label, *outcome.taken_back)
        )
    return RevisionChoice(requeue_after=outcome.requeue_after)


def rollout_facts(
    spec_revision: EngineRevision,
    ready: EngineRevision,
    engine: Manifest,
    pods: Sequence[Manifest],
    attempts: Mapping[str, Attempts],
    times: EngineTimes,
    now: datetime,
) -> RolloutFacts:
    """Return the facts about the roll-out from the `ready` revision to the spec's.

    `attempts` are attempts of requests by revision, and `times` the times since which engines have been
    failing.
    """
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
    """Return whether all engines have the revision `label` and are ready: engines may later return to it.

    Engines without room do not count if at least one engine is ready: otherwise a deployment with more
    engines than the cluster has room for would never be ready.
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
