"""What a Deployment's own status says: how many pods, how far the roll-out is. Pure; called by `status`."""

from dataclasses import dataclass

from mamba_operator.objects.manifest import Manifest, metadata


@dataclass(frozen=True, slots=True)
class WorkloadState:
    """One Deployment as its controller sees it; all zero when it does not exist."""

    exists: bool = False
    current: bool = False
    """The controller has seen the newest spec."""
    wanted: int = 0
    replicas: int = 0
    updated: int = 0
    ready: int = 0
    stuck: str | None = None
    """The controller's message when the progress deadline is over."""
    refused: str | None = None
    """The controller's message when the cluster does not let it make pods."""
    unavailable_since: str | None = None
    """Since when too few pods answer, as the API writes times; None: enough do."""


def workload_state(deployment: Manifest | None) -> WorkloadState:
    """Reads a Deployment; missing numbers are zero, as the API leaves zeros out."""
    if deployment is None:
        return WorkloadState()
    status = deployment.get("status") or {}
    conditions = {one.get("type"): one for one in status.get("conditions") or ()}
    progress = conditions.get("Progressing") or {}
    late = progress.get("status") == "False" and progress.get("reason") == "ProgressDeadlineExceeded"
    failure = conditions.get("ReplicaFailure") or {}
    refused = str(failure.get("message") or "no message") if failure.get("status") == "True" else None
    available = conditions.get("Available") or {}
    wanted = (deployment.get("spec") or {}).get("replicas")
    return WorkloadState(
        exists=True,
        current=status.get("observedGeneration", 0) >= metadata(deployment).get("generation", 0),
        wanted=1 if wanted is None else int(wanted),
        replicas=int(status.get("replicas") or 0),
        updated=int(status.get("updatedReplicas") or 0),
        ready=int(status.get("readyReplicas") or 0),
        stuck=str(progress.get("message") or "no progress within the deadline") if late else None,
        refused=refused,
        unavailable_since=available.get("lastTransitionTime") if available.get("status") == "False" else None,
    )
