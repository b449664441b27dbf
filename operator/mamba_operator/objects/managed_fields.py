"""Ownership of an object's fields, as `metadata.managedFields` records it. Pure; used by `client`."""

from collections.abc import Mapping
from typing import Any

from mamba_api.names import FIELD_MANAGER
from mamba_operator.objects.manifest import Manifest, metadata


def owned_by_apply(observed: Manifest) -> list[dict[str, Any]] | None:
    """Return managedFields in which the operator's Update entries are Apply entries; None if it has none.

    `kubectl apply --server-side` does the same to objects of a client-side apply.
    """
    entries = metadata(observed).get("managedFields") or []
    created = [entry for entry in entries if _is_ours(entry, "Update")]
    if not created:
        return None
    applied = next((entry for entry in entries if _is_ours(entry, "Apply")), None)
    fields: Any = {}
    for entry in (*created, *([applied] if applied else [])):
        fields = _union(fields, entry.get("fieldsV1") or {})
    ours = {**(applied or created[-1]), "operation": "Apply", "fieldsV1": fields}
    others = (entry for entry in entries if not (_is_ours(entry, "Update") or _is_ours(entry, "Apply")))
    return [ours, *others]


def _is_ours(entry: Mapping[str, Any], operation: str) -> bool:
    """Return whether the entry is the operator's; a subresource, such as the status, has its own entries."""
    return (entry.get("manager"), entry.get("operation"), entry.get("subresource") or "") == (
        FIELD_MANAGER, operation, "",
    )  # fmt: skip


def _union(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the union of two sets of fields, which are trees of names."""
    both = one.keys() & other.keys()
    return {**one, **other, **{name: _union(one[name], other[name]) for name in both}}
