"""Who set which field of an object, as `metadata.managedFields` tells it. Pure; used by `client`."""

from collections.abc import Mapping
from typing import Any

from mamba_api.names import FIELD_MANAGER
from mamba_operator.objects.manifest import Manifest, metadata


def owned_by_apply(observed: Manifest) -> list[dict[str, Any]] | None:
    """The object's managedFields, with what is the operator's by Update as its own by Apply; None: none is.

    What `kubectl apply --server-side` does to objects that an apply of the old kind made.
    """
    entries = metadata(observed).get("managedFields") or []
    created = [one for one in entries if _ours(one, "Update")]
    if not created:
        return None
    applied = next((one for one in entries if _ours(one, "Apply")), None)
    fields: Any = {}
    for one in (*created, *([applied] if applied else [])):
        fields = _union(fields, one.get("fieldsV1") or {})
    ours = {**(applied or created[-1]), "operation": "Apply", "fieldsV1": fields}
    return [ours, *(one for one in entries if not (_ours(one, "Update") or _ours(one, "Apply")))]


def _ours(entry: Mapping[str, Any], operation: str) -> bool:
    """A subresource, such as the status, is owned for itself."""
    return (entry.get("manager"), entry.get("operation"), entry.get("subresource") or "") == (
        FIELD_MANAGER, operation, "",
    )  # fmt: skip


def _union(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Of two sets of fields, which are trees of names."""
    both = one.keys() & other.keys()
    return {**one, **other, **{name: _union(one[name], other[name]) for name in both}}
