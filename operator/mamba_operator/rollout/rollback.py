"""Which revision the engines shall have: that of the spec, or the last ready one where that has failed. Pure.

That a revision failed is noted on the engine Deployment, in the same write that takes its pods back: no lost
write can part the two. The note is about one revision; any other begins afresh.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from mamba_api import names
from mamba_api.v1alpha1.conditions import Reason
from mamba_operator.objects.manifest import Manifest, annotation, metadata
from mamba_operator.objects.pod_trouble import is_engine, trouble
from mamba_operator.objects.timestamp import parse_timestamp
from mamba_operator.objects.workload_state import workload_state
from mamba_operator.render.revision import EngineRevision, label_of, pod_revision
from mamba_operator.rollout.attempts import Attempts, fails_more

PATIENCE = 60.0
"""Seconds that a new pod may have such trouble: a registry or a Secret may come a moment late."""
FATAL = frozenset(
    {
        Reason.IMAGE_PULL_FAILED,
        Reason.CONTAINER_NOT_CREATED,
        Reason.MODEL_NOT_LOADED,
        Reason.ENGINE_CRASHING,
        Reason.OUT_OF_MEMORY,
    }
)
"""What the pod itself is the cause of. Other troubles wait for the progress deadline: room, volumes."""
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


def choose_revision(
    wanted: EngineRevision,
    ready: EngineRevision | None,
    engine: Manifest | None,
    pods: Sequence[Manifest],
    *,
    attempts: Mapping[str, Attempts],
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
    nobody = Attempts()
    new, old = attempts.get(wanted.label, nobody), attempts.get(ready.label, nobody)
    if fails_more(new, old):
        said = f"it failed {new} requests, while {ready.label} beside it failed {old}"
        return RevisionChoice(ready, FailedRevision(wanted.digest, wanted.label, ERROR_RATE_ROSE, said))
    those = [pod for pod in pods if is_engine(pod) and pod_revision(pod) == wanted.label]
    state = workload_state(engine)
    if state.current and state.stuck is not None:
        found = trouble(those, now)
        told = (found.reason, found.message) if found else (Reason.PROGRESS_DEADLINE_EXCEEDED, state.stuck)
        return RevisionChoice(ready, FailedRevision(wanted.digest, wanted.label, *told))
    left: list[float] = []
    for pod in those:
        found = trouble([pod], now)
        made = parse_timestamp(str(metadata(pod).get("creationTimestamp")))
        if found is None or found.reason not in FATAL or made is None:
            continue
        rest = PATIENCE - (now - made).total_seconds()
        if rest <= 0:
            return RevisionChoice(
                ready, FailedRevision(wanted.digest, wanted.label, found.reason, found.message)
            )
        left.append(rest)
    return RevisionChoice(requeue_after=min(left, default=None))


def is_ready(engine: Manifest | None, label: str) -> bool:
    """Whether all engines are of that revision and answer: it can be gone back to."""
    if engine is None or label_of(engine) != label:
        return False
    state = workload_state(engine)
    return state.current and state.ready == state.updated == state.replicas >= max(state.wanted, 1)


def _noted(engine: Manifest) -> FailedRevision | None:
    text = annotation(engine, names.ANNOTATION_FAILED_REVISION)
    try:
        noted = FailedRevision(**json.loads(text)) if text is not None else None
    except (TypeError, ValueError):
        return None
    return (
        noted if noted is not None and all(isinstance(one, str) for one in asdict(noted).values()) else None
    )
