"""The recorded status of an object, which is a MambaDeployment or a Deployment, and the times in it. Pure.

Invalid parts are ignored, because any program may have written them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from mamba_api.choices import Role
from mamba_api.v1alpha1 import Condition, Status, WorkloadStatus
from mamba_operator.objects.manifest import Manifest, metadata


def parse_timestamp(text: str) -> datetime | None:
    """Return the time in the text, UTC if it names no zone; None if the text is no time."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def recorded_status(owner: Manifest) -> Status:
    """Return the recorded status without its unreadable fields, which the next pass computes again."""
    raw = owner.get("status")
    if not isinstance(raw, dict):
        return Status()
    try:
        return Status.model_validate(raw, by_alias=True, by_name=False)
    except ValidationError:
        readable = {
            key: value for key, value in raw.items() if key != "conditions" and _is_readable(key, value)
        }
        conditions = raw.get("conditions")
        kept = (
            [condition for condition in conditions if _is_condition(condition)]
            if isinstance(conditions, list)
            else []
        )
        return Status.model_validate({**readable, "conditions": kept}, by_alias=True, by_name=False)


def recorded_traffic(status: Status | None, role: Role) -> WorkloadStatus | None:
    """Return the recorded traffic of the engines of one role; None without any."""
    if status is None:
        return None
    if role == "unified":
        return status.workload
    return next((pool.workload for pool in status.pools if pool.name == role), None)


def with_readable_status(owner: Manifest) -> Manifest:
    """Return the object with only the readable part of its status."""
    rest = {key: value for key, value in owner.items() if key != "status"}
    return {**rest, "status": recorded_status(owner).manifest()} if owner.get("status") else rest


def _is_readable(key: str, value: Any) -> bool:
    try:
        Status.model_validate({key: value}, by_alias=True, by_name=False)
    except ValidationError:
        return False
    return True


def _is_condition(value: Any) -> bool:
    try:
        Condition.model_validate(value, by_alias=True, by_name=False)
    except ValidationError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class WorkloadState:
    """State of a Deployment as its controller reports it; all zero if the Deployment does not exist."""

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
