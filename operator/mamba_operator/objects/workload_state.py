"""The status of a Deployment: its number of pods and the progress of its roll-out. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mamba_operator.objects.manifest import Manifest, metadata


@dataclass(frozen=True, slots=True)
class WorkloadState:
    """One Deployment as its controller sees it; all zero when it does not exist."""

    exists: bool = False
    current: bool = False
    """Whether the controller has seen the newest spec."""
    desired: int = 0
    replicas: int = 0
    updated: int = 0
    ready: int = 0
    stuck: str | None = None
    """The controller's message when the progress deadline has passed."""
    refused: str | None = None
    """The controller's message when the cluster does not let it create pods."""
    unavailable_since: str | None = None
    """Time since which too few pods answer, as the API writes times; None = enough do."""


def workload_state(deployment: Manifest | None) -> WorkloadState:
    """Return the state of a Deployment; missing numbers are zero, because the API leaves zeros out."""
    if deployment is None:
        return WorkloadState()
    status = deployment.get("status") or {}
    conditions = {condition.get("type"): condition for condition in status.get("conditions") or ()}
    progress, failure, available = (
        conditions.get(name) or {} for name in ("Progressing", "ReplicaFailure", "Available")
    )
    late = progress.get("status") == "False" and progress.get("reason") == "ProgressDeadlineExceeded"
    replicas = (deployment.get("spec") or {}).get("replicas")
    return WorkloadState(
        exists=True,
        current=status.get("observedGeneration", 0) >= metadata(deployment).get("generation", 0),
        desired=1 if replicas is None else int(replicas),
        replicas=_count(status, "replicas"),
        updated=_count(status, "updatedReplicas"),
        ready=_count(status, "readyReplicas"),
        stuck=str(progress.get("message") or "no progress within the deadline") if late else None,
        refused=str(failure.get("message") or "no message") if failure.get("status") == "True" else None,
        unavailable_since=available.get("lastTransitionTime") if available.get("status") == "False" else None,
    )


def _count(status: Mapping[str, Any], field: str) -> int:
    return int(status.get(field) or 0)
