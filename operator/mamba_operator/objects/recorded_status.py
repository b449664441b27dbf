"""The status a MambaDeployment carries: read leniently, because anybody may have written it. Pure."""

from typing import Any

from pydantic import ValidationError

from mamba_api.v1alpha1 import Condition, Status
from mamba_operator.objects.manifest import Manifest


def recorded_status(owner: Manifest) -> Status:
    """The recorded status; what cannot be read is left out, field by field, and computed anew."""
    raw = owner.get("status")
    if not isinstance(raw, dict):
        return Status()
    try:
        return Status.model_validate(raw, by_alias=True, by_name=False)
    except ValidationError:
        readable = {key: value for key, value in raw.items() if key != "conditions" and _reads(key, value)}
        conditions = raw.get("conditions")
        kept = [one for one in conditions if _condition(one)] if isinstance(conditions, list) else []
        return Status.model_validate({**readable, "conditions": kept}, by_alias=True, by_name=False)


def with_readable_status(owner: Manifest) -> Manifest:
    """The object with its status as far as it can be read: a broken status must not stop the serving."""
    rest = {key: value for key, value in owner.items() if key != "status"}
    return {**rest, "status": recorded_status(owner).manifest()} if owner.get("status") else rest


def _reads(key: str, value: Any) -> bool:
    try:
        Status.model_validate({key: value}, by_alias=True, by_name=False)
    except ValidationError:
        return False
    return True


def _condition(value: Any) -> bool:
    try:
        Condition.model_validate(value, by_alias=True, by_name=False)
    except ValidationError:
        return False
    return True
