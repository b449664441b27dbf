"""Facts about the loader's Job and its pods: which have ended, how, and when. Called by `model_load`."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from mamba_api import names
from mamba_operator.objects.manifest import Manifest, metadata, name_of
from mamba_operator.objects.pod_trouble import is_loader, last_words
from mamba_operator.objects.recorded_status import parse_timestamp

LOADER_FIELD = "the initContainer loader in spec.podTemplate"
"""Where users set the loader's resources, wherever it runs."""


def pods_of(job: Manifest | None, pods: Iterable[Manifest]) -> list[Manifest]:
    """Return the loader pods of a Job, the oldest first."""
    if job is None:
        return []
    uid = metadata(job).get("uid")
    return sorted((pod for pod in pods if is_loader(pod) and _is_owned_by(pod, uid)), key=_creation_key)


def _is_owned_by(pod: Manifest, uid: Any) -> bool:
    return any(owner.get("uid") == uid for owner in metadata(pod).get("ownerReferences") or ())


def _creation_key(pod: Manifest) -> tuple[str, str]:
    return str(metadata(pod).get("creationTimestamp") or ""), name_of(pod)


def running_loader(pods: Iterable[Manifest]) -> str | None:
    """Return the name of a loader pod that has not ended; None if there is none."""
    running = (
        name_of(pod) for pod in pods if is_loader(pod) and phase_of(pod) not in ("Succeeded", "Failed")
    )
    return min(running, default=None)


def phase_of(pod: Manifest) -> str:
    """Return the phase of a pod; Pending if its status has none yet."""
    return str((pod.get("status") or {}).get("phase") or "Pending")


def terminated_state(pod: Manifest) -> dict[str, Any]:
    """Return the terminated state of the pod's loader container; empty while it has not ended."""
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        if container.get("name") == names.LOADER_CONTAINER:
            state = (container.get("state") or {}).get("terminated")
            return state if isinstance(state, dict) else {}
    return {}


def has_running_sidecar(pod: Manifest) -> bool:
    """Return whether the loader has ended while another container of its pod runs.

    Without another container the pod has ended, too, but its kubelet reports the end of the pod some time
    after the end of the container.
    """
    containers = (pod.get("status") or {}).get("containerStatuses") or ()
    states = [container.get("state") or {} for container in containers]
    return bool(terminated_state(pod)) and any(state.get("running") is not None for state in states)


def failure_text(pods: Iterable[Manifest], job: Manifest) -> str:
    """Describe how the last attempt failed, and what to do about it."""
    failed = [pod for pod in pods if phase_of(pod) == "Failed"]
    if not failed:
        message = (_conditions(job).get("Failed") or {}).get("message") or "its pods are gone"
        return f"{message}; look at the events of the Job"
    return pod_failure_text(failed[-1])


def pod_failure_text(pod: Manifest) -> str:
    """Describe how the loader of one pod failed, and what to do about it."""
    state = terminated_state(pod)
    if state.get("reason") == "OOMKilled":
        return f"pod {name_of(pod)} ran out of memory; raise the limit of {LOADER_FIELD}"
    words = last_words(state or pod.get("status") or {})
    return (
        f"pod {name_of(pod)}: {words}; check spec.model.uri, its tokenSecretRef or secretRef, and the "
        "connection to its source"
    )


def _conditions(job: Manifest) -> dict[str, dict[str, Any]]:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return {str(condition.get("type")): condition for condition in conditions}


def true_since(job: Manifest, condition: str) -> str | None:
    """Return since when a condition of the Job is true, as its status writes it; None if it is not true.

    "-" if the condition is true and its status has no time.
    """
    value = _conditions(job).get(condition) or {}
    return str(value.get("lastTransitionTime") or "-") if value.get("status") == "True" else None


def age(since: str, now: datetime) -> float:
    """Return the seconds since a time; infinity if the time cannot be read."""
    then = parse_timestamp(since)
    return (now - then).total_seconds() if then is not None else float("inf")
