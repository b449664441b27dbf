"""Whether a roll-out takes an old engine away first, because there is no room for one more. Pure.

A roll-out adds a pod before it takes one. Where every GPU is taken, or the quota, that pod waits for ever;
then an old one is drained first, and requests wait at the gateway until the new one answers.

How many engines may be missing then is not one: a fleet that wants more engines than there is room for misses
some anyway, and none would ever be replaced. So those without room are counted, and one on top.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from mamba_api.quantity import parse_quantity
from mamba_api.v1alpha1 import Rollout
from mamba_operator.objects.manifest import Manifest, is_terminating, metadata
from mamba_operator.objects.pod_trouble import EXCEEDED_QUOTA, answers, has_ended, has_place, is_engine
from mamba_operator.objects.timestamp import parse_timestamp
from mamba_operator.objects.workload_state import workload_state
from mamba_operator.render.revision import label_of, pod_revision

NO_ROOM = ("Insufficient ", "Too many pods")
"""What the scheduler says of nodes whose resources are taken."""
QUEUE_GATES = ("kueue.x-k8s.io/",)
"""Beginnings of scheduling gates that a queue removes as soon as its quota has room. Nobody knows what other
gates wait for, so that no engine goes for them."""
STILL = 30.0
"""Seconds without any movement of engines after which a place that is empty is taken for lost: a pod that
goes, or one that comes, has its node within a few."""
_PLACE = ("nodeSelector", "affinity", "priorityClassName", "runtimeClassName")


@dataclass(frozen=True, slots=True)
class InPlaceRollout:
    """Whether old engines are stopped before new ones start."""

    now: bool = False
    """An old one goes before the new one comes."""
    missing: int = 0
    """How many engines may be missing, whatever the spec says; 0: as the spec says."""
    waits: bool = False
    """An engine that the roll-out adds has no room, and `inPlaceAfter` is not over."""
    refused: bool = False
    """An engine that the roll-out adds has no room, and the spec lets no older one go for it."""
    retry: str | None = None
    """Changes whenever an engine has gone while the quota refuses another. The cluster would try again by
    itself after many minutes only; written to the Deployment, the change makes it try at once."""
    requeue_after: float | None = None
    """Seconds until a pod has waited for room for long enough, or a place has been empty for long enough."""


def in_place_rollout(
    engine: Manifest | None,
    pods: Sequence[Manifest],
    label: str,
    rollout: Rollout,
    replicas: int,
    still_since: datetime | None,
    now: datetime,
    *,
    back: bool = False,
) -> InPlaceRollout:
    """Whether engines are replaced in place.

    Only where the pod that waits asks for what one that is to go has: then there is room once that is gone.
    Once begun, it goes on until all of another revision have ended.

    Args:
        engine: the engine Deployment.
        pods: of the deployment.
        label: revision that engines shall have.
        rollout: what the spec says.
        replicas: engines wanted.
        still_since: since when no engine has moved.
        now: the time, with a time zone.
        back: the revision is the last ready one, and the spec's own is taken back. Then engines of that one
            which do not answer may go at once, all of them: they hold the room of those that come back.
    """
    if engine is None or rollout.pause:
        return InPlaceRollout()
    engines = [pod for pod in pods if is_engine(pod) and not has_ended(pod)]
    found = _for_want_of_room(engine, engines, label, rollout, replicas, still_since, now, back)
    if back and any(pod_revision(pod) != label for pod in engines):
        return replace(found, missing=max(found.missing, replicas - sum(map(answers, engines))))
    return found


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
    """Decide the same, but for what engines that were taken back may miss."""
    if label_of(engine) != label and not back:
        return InPlaceRollout()
    mixed = len(set(map(_template, engines))) > 1 or any(pod_revision(pod) != label for pod in engines)
    if mixed and _without_surge(engine) and rollout.in_place_wait is not None:
        found = _going_on(engine, engines, replicas, still_since, now)
        # That old engines go first may be the spec's own wish.
        return replace(found, now=rollout.max_surge > 0)
    if rollout.max_surge == 0:
        return InPlaceRollout()
    patience = rollout.in_place_wait
    waiting = [since for since in _waiting(engine, engines, label) if since is not None]
    if not waiting:
        return InPlaceRollout()
    if patience is None:
        return InPlaceRollout(refused=True)
    left = patience.seconds - (now - min(waiting)).total_seconds()
    if left > 0:
        in_time = patience.seconds < rollout.progress_deadline.seconds
        return InPlaceRollout(waits=in_time, requeue_after=left)
    places = sum(map(has_place, engines))
    return InPlaceRollout(now=True, missing=_missing(replicas, places), retry=_retry(engine, engines))


def _missing(replicas: int, places: int) -> int:
    """Count the engines that may be missing: those without a place, and the one that is replaced."""
    return min(max(replicas - places, 0) + 1, max(replicas, 1))


def _going_on(
    engine: Manifest, engines: Sequence[Manifest], replicas: int, still_since: datetime | None, now: datetime
) -> InPlaceRollout:
    """Decide about a roll-out in place that has begun.

    A place that is empty for the moment between one engine and the next still counts, or the next old engine
    would go for it; one that nobody took while nothing moved was lost, with its node for one.
    """
    places = sum(map(has_place, engines))
    missing = engine["spec"]["strategy"]["rollingUpdate"].get("maxUnavailable")
    # Somebody may have written a percentage; the next write takes it back.
    counted = workload_state(engine).wanted - missing + 1 if isinstance(missing, int) else places
    left = None
    if places < counted:
        leaving = any(map(is_terminating, engines))
        left = STILL if leaving or still_since is None else STILL - (now - still_since).total_seconds()
        places = counted if left > 0 else places
    return InPlaceRollout(
        now=True,
        missing=_missing(replicas, places),
        retry=_retry(engine, engines),
        requeue_after=left if left is not None and left > 0 else None,
    )


def _retry(engine: Manifest, engines: Sequence[Manifest]) -> str | None:
    refused = workload_state(engine).refused
    return str(len(engines)) if refused is not None and EXCEEDED_QUOTA in refused else None


def _waiting(engine: Manifest, engines: Sequence[Manifest], label: str) -> Iterable[datetime | None]:
    """Yield since when each added engine waits for what an older one has; None: it does not."""
    for pod in engines:
        old = [one for one in engines if _template(one) != _template(pod) and _may_go(one)]
        if pod_revision(pod) == label and any(_fits_in_place_of(pod, other) for other in old):
            yield _without_room(pod)
    older = [one for one in engines if pod_revision(one) != label and _may_go(one)]
    if any(_is_no_more_than(engine["spec"]["template"], one) for one in older):
        yield _refused_since(engine)


def _may_go(pod: Manifest) -> bool:
    """Tell whether the end of the pod would make room."""
    return has_place(pod) and not is_terminating(pod)


def _template(pod: Manifest) -> tuple[str | None, str | None]:
    """What the pod was made of: its revision, and the Deployment's own name for it, all that changes with a
    `kubectl rollout restart`."""
    return pod_revision(pod), (metadata(pod).get("labels") or {}).get("pod-template-hash")


def _without_surge(engine: Manifest) -> bool:
    try:
        return bool(engine["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 0)
    except (KeyError, TypeError):
        return False


def _without_room(pod: Manifest) -> datetime | None:
    """Since when no node, or queue, has room for it; None where it has one, or another reason to wait."""
    gates = [str(one.get("name")) for one in (pod.get("spec") or {}).get("schedulingGates") or ()]
    if gates:
        queued = all(name.startswith(QUEUE_GATES) for name in gates)
        return parse_timestamp(str(metadata(pod).get("creationTimestamp"))) if queued else None
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            words = str(condition.get("message") or "")
            room = any(said in words for said in NO_ROOM)
            return parse_timestamp(str(condition.get("lastTransitionTime"))) if room else None
    return None


def _refused_since(engine: Manifest) -> datetime | None:
    """Return since when a quota has no room for an engine of the newest template; None where it has."""
    state = workload_state(engine)
    if not state.current or state.refused is None or EXCEEDED_QUOTA not in state.refused:
        return None
    conditions = (engine.get("status") or {}).get("conditions") or ()
    since = next(one.get("lastTransitionTime") for one in conditions if one.get("type") == "ReplicaFailure")
    return parse_timestamp(str(since))


def _fits_in_place_of(pod: Manifest, other: Manifest) -> bool:
    """Whether the pod could run where the other does: it asks for the same, and tolerates no less."""
    mine, theirs = ((one.get("spec") or {}).get("tolerations") or [] for one in (pod, other))
    return _asks(pod) == _asks(other) and all(each in mine for each in theirs)


def _asks(pod: Manifest) -> dict[str, Any]:
    """What of a pod the scheduler needs a place for."""
    spec = pod.get("spec") or {}
    asked = {name: spec.get(name) for name in _PLACE}
    for kind in ("initContainers", "containers"):
        asked[kind] = [(one.get("resources") or {}).get("requests") for one in spec.get(kind) or ()]
    return asked


def _is_no_more_than(template: Manifest, pod: Manifest) -> bool:
    """Tell whether pods of the template ask a quota for no more than that pod gives back when it goes. What
    the cluster adds by itself, as a LimitRange does, is added to both."""
    wanted, held = _totals(template), _totals(pod)
    return all(amount <= held.get(name, Decimal(0)) for name, amount in wanted.items())


def _totals(pod: Manifest) -> Mapping[str, Decimal]:
    """Sum what the containers of a pod ask for, by resource."""
    found: dict[str, Decimal] = {}
    for container in (pod.get("spec") or {}).get("containers") or ():
        resources = container.get("resources") or {}
        for name, amount in {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.items():
            found[name] = found.get(name, Decimal(0)) + parse_quantity(amount)
    return found
