"""Whether a roll-out takes an old engine away first, because no node has room for one more. Pure.

A roll-out adds a pod before it takes one. Where every GPU is taken, that pod waits for ever; then an old one
is drained first, and requests wait at the gateway until the new one answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mamba_api.v1alpha1 import Rollout
from mamba_operator.objects.manifest import Manifest, is_terminating, metadata
from mamba_operator.objects.pod_trouble import has_ended, is_engine
from mamba_operator.objects.timestamp import parse_timestamp
from mamba_operator.render.revision import label_of, pod_revision

NO_ROOM = ("Insufficient ", "Too many pods")
"""What the scheduler says of nodes whose resources are taken."""
_PLACE = ("nodeSelector", "affinity", "priorityClassName", "runtimeClassName")


@dataclass(frozen=True, slots=True)
class InPlaceRollout:
    """Whether old engines are stopped before new ones start."""

    now: bool = False
    """An old one goes before the new one comes."""
    requeue_after: float | None = None
    """Seconds until a pod has waited for room for long enough."""


def in_place_rollout(
    engine: Manifest | None, pods: Sequence[Manifest], label: str, rollout: Rollout, now: datetime
) -> InPlaceRollout:
    """Whether engines are replaced in place.

    Only where the pod that waits asks for what one that is to go has: then there is room once that is gone.
    Once begun, it goes on until all of another revision have ended.

    Args:
        engine: the engine Deployment.
        pods: of the deployment.
        label: revision that engines shall have.
        rollout: what the spec says.
        now: the time, with a time zone.
    """
    if engine is None or rollout.pause or rollout.max_surge == 0 or label_of(engine) != label:
        return InPlaceRollout()
    engines = [pod for pod in pods if is_engine(pod) and not has_ended(pod)]
    mixed = len(set(map(_template, engines))) > 1 or any(pod_revision(pod) != label for pod in engines)
    if mixed and _without_surge(engine):
        return InPlaceRollout(now=True)
    left: list[float] = []
    for pod in engines:
        old = [one for one in engines if _template(one) != _template(pod) and not is_terminating(one)]
        since = _without_room(pod) if pod_revision(pod) == label else None
        if since is not None and any(_fits_in_place_of(pod, other) for other in old):
            left.append(rollout.in_place_after.seconds - (now - since).total_seconds())
    if not left:
        return InPlaceRollout()
    return InPlaceRollout(now=True) if min(left) <= 0 else InPlaceRollout(requeue_after=min(left))


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
    """Since when no node has room for it; None where it has a node, or another reason to wait."""
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            words = str(condition.get("message") or "")
            room = any(said in words for said in NO_ROOM)
            return parse_timestamp(str(condition.get("lastTransitionTime"))) if room else None
    return None


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
