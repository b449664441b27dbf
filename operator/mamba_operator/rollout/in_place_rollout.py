"""Decision whether a roll-out removes an old engine first, for lack of room. Pure.

A roll-out adds a pod before it removes one. If every GPU or the quota is in use, the new pod would wait for
ever. An old engine is then drained first, and requests wait at the gateway until the new one is ready.

More than one engine may be missing then. If a fleet has less room than engines, some are missing anyway, and
with a limit of one missing engine none would ever be replaced. So the limit is the number of engines without
room, plus one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from mamba_api.quantity import parse_quantity
from mamba_api.v1alpha1 import Rollout
from mamba_operator.objects.manifest import Manifest, is_terminating, label_of, metadata, pod_revision
from mamba_operator.objects.pod_trouble import EXCEEDED_QUOTA, answers, has_ended, has_place, is_engine
from mamba_operator.objects.recorded_status import parse_timestamp, workload_state

NO_ROOM = ("Insufficient ", "Too many pods")
"""Parts of the scheduler's message about nodes that have too little free resources."""
QUEUE_GATES = ("kueue.x-k8s.io/",)
"""Prefixes of scheduling gates that a queue removes as soon as its quota has room. The purpose of other gates
is unknown, so no engine is removed for them."""
EMPTY_PLACE_SECONDS = 30.0
"""Seconds without any change of engines after which free room counts as lost: a new pod would get its node
within a few seconds."""
_PLACE = ("nodeSelector", "affinity", "priorityClassName", "runtimeClassName")


@dataclass(frozen=True, slots=True)
class InPlaceRollout:
    """Decision whether old engines are removed before new ones start, and how many may be missing."""

    now: bool = False
    """Whether an old engine is removed before a new one starts."""
    missing: int = 0
    """Number of engines that may be missing, whatever the spec says; 0 = the number of the spec."""
    waits: bool = False
    """Whether an engine that the roll-out has added has no room, and `inPlaceAfter` has not passed."""
    refused: bool = False
    """Whether an added engine has no room, and the spec does not allow to remove an older one first."""
    retry: str | None = None
    """Text that changes whenever an engine has ended while the quota refuses another. Written to the
    Deployment, the change makes the cluster retry at once instead of after many minutes."""
    requeue_after: float | None = None
    """Seconds until a pod has waited long enough for room, or until free room counts as lost."""


def in_place_rollout(
    engine: Manifest,
    pods: Sequence[Manifest],
    label: str,
    rollout: Rollout,
    replicas: int,
    still_since: datetime | None,
    now: datetime,
    *,
    back: bool = False,
) -> InPlaceRollout:
    """Decide whether engines are replaced in place, that is, whether old ones are removed first.

    This is only done if the waiting pod requests the same resources as an engine that is replaced, so that
    there is room once that engine has ended. A roll-out in place continues until all engines of other
    revisions have ended.

    Args:
        engine: the engine Deployment.
        pods: the pods of the deployment.
        label: label of the revision that engines are to have.
        rollout: `spec.rollout`.
        replicas: number of engines that are to run.
        still_since: time since which no engine has changed.
        now: the time, with a time zone.
        back: whether the engines return to the last ready revision. All engines of the failed revision that
            are not ready may then end at once, because they occupy the room of the others.
    """
    if rollout.pause:
        return InPlaceRollout()
    engines = [pod for pod in pods if is_engine(pod) and not has_ended(pod)]
    decision = _for_want_of_room(engine, engines, label, rollout, replicas, still_since, now, back)
    if back and any(pod_revision(pod) != label for pod in engines):
        return replace(decision, missing=max(decision.missing, replicas - sum(map(answers, engines))))
    return decision


def _for_want_of_room(
    engine: Manifest,
    engines: Sequence[Manifest],
    label: str,
    rollout: Rollout,
    replicas: int,
    still_since: datetime | None,
    now: datetime,
    back: bool,
) -> InPlaceRollout:
    """Decide whether the lack of room requires replacement in place.

    `engines` are the pods of engines that have not ended; the other parameters are those of
    `in_place_rollout`.
    """
    if label_of(engine) != label and not back:
        return InPlaceRollout()
    mixed = len(set(map(_template, engines))) > 1 or any(pod_revision(pod) != label for pod in engines)
    if mixed and _without_surge(engine) and rollout.in_place_wait is not None:
        decision = _continued(engine, engines, replicas, still_since, now)
        # The spec itself may require that old engines stop first.
        return replace(decision, now=rollout.max_surge > 0)
    if rollout.max_surge == 0:
        return InPlaceRollout()
    patience = rollout.in_place_wait
    waiting = [since for since in _waiting(engine, engines, label) if since is not None]
    if not waiting:
        return InPlaceRollout()
    if patience is None:
        return InPlaceRollout(refused=True)
    seconds_left = patience.seconds - (now - min(waiting)).total_seconds()
    if seconds_left > 0:
        in_time = patience.seconds < rollout.progress_deadline.seconds
        return InPlaceRollout(waits=in_time, requeue_after=seconds_left)
    places = sum(map(has_place, engines))
    return InPlaceRollout(now=True, missing=_missing(replicas, places), retry=_retry(engine, engines))


def _missing(replicas: int, places: int) -> int:
    """Return the number of engines that may be missing: those without room, and the one being replaced."""
    return min(max(replicas - places, 0) + 1, max(replicas, 1))


def _continued(
    engine: Manifest, engines: Sequence[Manifest], replicas: int, still_since: datetime | None, now: datetime
) -> InPlaceRollout:
    """Decide how a roll-out in place that has begun continues.

    Room that is free between the end of one engine and the start of the next still counts; otherwise the next
    old engine would be removed for it. Room that stays free while nothing changes counts as lost, for
    instance with its node.
    """
    places = sum(map(has_place, engines))
    missing = engine["spec"]["strategy"]["rollingUpdate"].get("maxUnavailable")
    # Somebody may have written a percentage; the next write reverts it.
    counted = workload_state(engine).desired - missing + 1 if isinstance(missing, int) else places
    seconds_left = None
    if places < counted:
        leaving = any(map(is_terminating, engines))
        seconds_left = (
            EMPTY_PLACE_SECONDS
            if leaving or still_since is None
            else EMPTY_PLACE_SECONDS - (now - still_since).total_seconds()
        )
        places = counted if seconds_left > 0 else places
    return InPlaceRollout(
        now=True,
        missing=_missing(replicas, places),
        retry=_retry(engine, engines),
        requeue_after=seconds_left if seconds_left is not None and seconds_left > 0 else None,
    )


def _retry(engine: Manifest, engines: Sequence[Manifest]) -> str | None:
    refused = workload_state(engine).refused
    return str(len(engines)) if refused is not None and EXCEEDED_QUOTA in refused else None


def _waiting(engine: Manifest, engines: Sequence[Manifest], label: str) -> Iterable[datetime | None]:
    """Yield since when each added engine waits for the room of an older one; None = it does not wait."""
    for pod in engines:
        old = [other for other in engines if _template(other) != _template(pod) and _frees_room(other)]
        if pod_revision(pod) == label and any(_fits_in_place_of(pod, other) for other in old):
            yield without_room_since(pod)
    older = [pod for pod in engines if pod_revision(pod) != label and _frees_room(pod)]
    if any(_is_no_more_than(engine["spec"]["template"], pod) for pod in older):
        yield _refused_since(engine)


def _frees_room(pod: Manifest) -> bool:
    """Return whether room becomes free when the pod ends."""
    return has_place(pod) and not is_terminating(pod)


def _template(pod: Manifest) -> tuple[str | None, str | None]:
    """Return the identity of the pod's template: its revision, and the hash that the Deployment gives it.

    A `kubectl rollout restart` changes only the hash. None = the pod lacks the label.
    """
    return pod_revision(pod), (metadata(pod).get("labels") or {}).get("pod-template-hash")


def _without_surge(engine: Manifest) -> bool:
    try:
        return bool(engine["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 0)
    except (KeyError, TypeError):
        return False


def without_room_since(pod: Manifest) -> datetime | None:
    """Return the time since which no node and no queue has room for the pod.

    The result is None if the pod has room, waits for another reason, or has no readable time.
    """
    gates = [str(gate.get("name")) for gate in (pod.get("spec") or {}).get("schedulingGates") or ()]
    if gates:
        queued = all(name.startswith(QUEUE_GATES) for name in gates)
        return parse_timestamp(str(metadata(pod).get("creationTimestamp"))) if queued else None
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            message = str(condition.get("message") or "")
            lacks_room = any(part in message for part in NO_ROOM)
            return parse_timestamp(str(condition.get("lastTransitionTime"))) if lacks_room else None
    return None


def _refused_since(engine: Manifest) -> datetime | None:
    """Return the time since which a quota refuses engines of the newest template; None if it does not."""
    state = workload_state(engine)
    if not state.current or state.refused is None or EXCEEDED_QUOTA not in state.refused:
        return None
    conditions = (engine.get("status") or {}).get("conditions") or ()
    failures = (condition for condition in conditions if condition.get("type") == "ReplicaFailure")
    since = next(failure.get("lastTransitionTime") for failure in failures)
    return parse_timestamp(str(since))


def _fits_in_place_of(pod: Manifest, other: Manifest) -> bool:
    """Return whether `pod` could run in place of `other`: it requests the same and tolerates no less."""
    own, required = ((candidate.get("spec") or {}).get("tolerations") or [] for candidate in (pod, other))
    return _needs(pod) == _needs(other) and all(toleration in own for toleration in required)


def _needs(pod: Manifest) -> dict[str, Any]:
    """Return the fields of a pod by which the scheduler chooses a node."""
    spec = pod.get("spec") or {}
    needs = {name: spec.get(name) for name in _PLACE}
    for kind in ("initContainers", "containers"):
        needs[kind] = [
            (container.get("resources") or {}).get("requests") for container in spec.get(kind) or ()
        ]
    return needs


def _is_no_more_than(template: Manifest, pod: Manifest) -> bool:
    """Return whether a pod of the template needs no more of a quota than `pod` frees when it ends.

    Requests that the cluster adds by itself, as a LimitRange does, are added to both.
    """
    needed, freed = _totals(template), _totals(pod)
    return all(amount <= freed.get(name, Decimal(0)) for name, amount in needed.items())


def _totals(pod: Manifest) -> Mapping[str, Decimal]:
    """Return the sum of the requests of a pod's containers, by resource."""
    totals: dict[str, Decimal] = {}
    for container in (pod.get("spec") or {}).get("containers") or ():
        resources = container.get("resources") or {}
        for name, amount in {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.items():
            totals[name] = totals.get(name, Decimal(0)) + parse_quantity(amount)
    return totals
