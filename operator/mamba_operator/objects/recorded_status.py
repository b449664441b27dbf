"""The recorded status of a MambaDeployment, parsed leniently because anybody may have written it. Pure."""

from typing import Any

from pydantic import ValidationError

from mamba_api.v1alpha1 import Condition, Status
from mamba_operator.objects.manifest import Manifest


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


def with_readable_status(owner: Manifest) -> Manifest:
    """Return the object with the readable part of its status: an invalid status must not stop its serving."""
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
