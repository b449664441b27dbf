"""`compare_children`: compares the desired children with the observed ones, and returns the changes. Pure.

Called by `plan`. A child is compared by the hash of the applied manifest and then field by field, unless the
same version of it was equal to the same manifest before. `drift` compares only fields that the operator sets:
defaults of the API server and fields of other managers are ignored.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from itertools import islice
from typing import Any

from mamba_api import names
from mamba_api.quantity import SUFFIXES
from mamba_operator.model.model_cache import why_unchanged
from mamba_operator.objects.kinds import CLAIM
from mamba_operator.objects.manifest import Manifest, Ref, annotation, digest, is_terminating, metadata, ref
from mamba_operator.observation.snapshot import Snapshot


class Change(StrEnum):
    """Reason why a child is written or removed."""

    MISSING = "Missing"
    OUTDATED = "Outdated"
    DRIFTED = "Drifted"
    NOT_NEEDED = "NotNeeded"
    RECORDED = "Recorded"
    """The child is a record for later passes and changes nothing that runs."""


@dataclass(frozen=True, slots=True)
class Apply:
    """Tells a pass to write a child, so that it matches `manifest`."""

    manifest: Manifest
    change: Change
    detail: str = ""
    """Fields of the child that differ, as text for users; only for `DRIFTED`."""
    create_only: bool = False
    """Whether a child that exists is not changed, because its content is random."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Tells a pass to remove a child that is no longer needed."""

    ref: Ref
    uid: str
    change: Change = Change.NOT_NEEDED


@dataclass(frozen=True, slots=True)
class ChildComparison:
    """The children that have to be written, and those that are up to date."""

    applies: tuple[Apply, ...]
    """Changes in the order of the desired children."""
    up_to_date: dict[str, str]
    """Value of `Snapshot.up_to_date` for the children that match their manifest now."""
    cache_kept: str | None
    """Reason why the claim of the model cache stays as it is although the spec differs. Its change is then
    not in `applies`. None = it matches, or can be changed."""


def compare_children(desired: Sequence[Manifest], snapshot: Snapshot) -> ChildComparison:
    """Decide what to do about each desired child."""
    cache_kept = _cache_kept(desired, snapshot)
    up_to_date: dict[str, str] = {}
    applies = [
        apply
        for manifest in desired
        if not (cache_kept and manifest["kind"] == CLAIM.kind)
        and (apply := _compare(manifest, snapshot, up_to_date)) is not None
    ]
    return ChildComparison(tuple(applies), up_to_date, cache_kept)


def _cache_kept(desired: Iterable[Manifest], snapshot: Snapshot) -> str | None:
    for claim in desired:
        if claim["kind"] != CLAIM.kind or (observed := snapshot.children.get(ref(claim))) is None:
            continue
        if (reason := why_unchanged(claim, observed)) is not None:
            return reason
    return None


def _compare(manifest: Manifest, snapshot: Snapshot, up_to_date: dict[str, str]) -> Apply | None:
    """Return the change of one child; None if it is up to date, which is then noted in `up_to_date`."""
    observed = snapshot.children.get(ref(manifest))
    if observed is None:
        return Apply(manifest, Change.MISSING)
    spec_hash = annotation(manifest, names.ANNOTATION_SPEC_HASH)
    if annotation(observed, names.ANNOTATION_SPEC_HASH) != spec_hash:
        return Apply(manifest, Change.OUTDATED)
    uid = str(metadata(observed).get("uid"))
    both = version_hash(manifest, observed)
    if snapshot.up_to_date.get(uid) != both:
        fields = drift(manifest, observed)
        if fields and snapshot.accepted.get(uid) != observed_hash(manifest, observed):
            return Apply(manifest, Change.DRIFTED, ", ".join(fields))
    up_to_date[uid] = both
    return None


def version_hash(desired: Manifest, observed: Manifest) -> str:
    """Return the value in `Snapshot.up_to_date` of a child whose present version matches its manifest."""
    return f"{metadata(observed).get('resourceVersion')} {annotation(desired, names.ANNOTATION_SPEC_HASH)}"


def is_being_deleted(child_ref: Ref, snapshot: Snapshot) -> bool:
    """Return whether the child exists and is being deleted."""
    child = snapshot.children.get(child_ref)
    return child is not None and is_terminating(child)


def unneeded_children(snapshot: Snapshot, keep: set[Ref]) -> tuple[Delete, ...]:
    """Return the removals of the children that are not in `keep`."""
    return tuple(
        Delete(child_ref, str(child["metadata"]["uid"]))
        for child_ref, child in sorted(snapshot.children.items())
        # The volume with the downloaded weights is deleted only together with its owner.
        if child_ref not in keep and not is_terminating(child) and child_ref.kind != CLAIM.kind
    )


IDENTITIES: Sequence[tuple[str, ...]] = (
    ("name",), ("containerPort", "protocol"), ("port", "protocol"), ("mountPath",), ("key", "operator"),
    ("uid",), ("topologyKey",),
)  # fmt: skip
"""Sets of fields that can identify the items of a list; the first one that all items have is used."""
QUANTITIES = frozenset({"requests", "limits", "hard", "storage", "sizeLimit", "overhead", "divisor"})
_QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([eE][+-]?[0-9]{1,3})|([A-Za-z]*))", re.ASCII)
EXACT_FIELDS = frozenset({"selector", "nodeSelector"})
"""Fields in which an additional key counts as drift, because it would select other pods or other nodes."""
IGNORED_FIELDS = frozenset({"apiVersion", "kind", "stringData"})
"""Identity of the object itself, and a field that the API server converts."""
MAX_PATHS = 5
"""Maximum number of paths that a comparison returns."""


def drift(desired: Manifest, observed: Manifest) -> list[str]:
    """Return the paths of the first `MAX_PATHS` desired fields that differ; empty if none does."""
    return list(islice(_differences(desired, observed, ""), MAX_PATHS))


def observed_hash(desired: Manifest, observed: Manifest) -> str:
    """Return the hash of an observed child, without its status and the annotations of other programs."""
    meta = observed.get("metadata") or {}
    ours = (desired.get("metadata") or {}).get("annotations") or {}
    annotations = {key: value for key, value in (meta.get("annotations") or {}).items() if key in ours}
    rest = {key: value for key, value in observed.items() if key not in ("metadata", "status")}
    return digest([rest, meta.get("labels"), annotations])


def _differences(desired: Any, observed: Any, path: str, *, quantity: bool = False) -> Iterator[str]:
    if isinstance(desired, Mapping):
        if isinstance(observed, Mapping):
            yield from _mapping_differences(desired, observed, path, quantity)
            return
    elif isinstance(desired, list):
        if isinstance(observed, list):
            yield from _list_differences(desired, observed, path)
            return
    else:
        if not _same(desired, observed, quantity):
            yield path
        return
    # The API server drops an empty object or list, so its absence is no drift.
    if desired or observed is not None:
        yield path


def _mapping_differences(
    desired: Mapping[str, Any], observed: Mapping[str, Any], path: str, quantity: bool
) -> Iterator[str]:
    for key, value in desired.items():
        if not path and key in IGNORED_FIELDS:
            continue
        inner = f"{path}.{key}" if path else key
        if key in EXACT_FIELDS and _has_additional_keys(observed.get(key), value):
            yield inner
            continue
        yield from _differences(value, observed.get(key), inner, quantity=quantity or key in QUANTITIES)


def _has_additional_keys(observed: Any, desired: Any) -> bool:
    both = isinstance(observed, Mapping) and isinstance(desired, Mapping)
    return both and not observed.keys() <= desired.keys()


def _list_differences(desired: list[Any], observed: list[Any], path: str) -> Iterator[str]:
    identity = _identity(desired)
    if identity is None:
        if len(desired) != len(observed):
            yield path
            return
        for index, (item, observed_item) in enumerate(zip(desired, observed, strict=True)):
            yield from _differences(item, observed_item, f"{path}[{index}]")
        return
    by_identity = {
        tuple(item.get(key) for key in identity): item for item in observed if isinstance(item, Mapping)
    }
    for item in desired:
        value = tuple(item.get(key) for key in identity)
        inner = f"{path}[{value[0]}]"
        if value not in by_identity:
            yield inner
        else:
            yield from _differences(item, by_identity[value], inner)


def _identity(items: list[Any]) -> tuple[str, ...] | None:
    """Return the first of `IDENTITIES` by which the items of a list can be told apart.

    Every item has all fields of the result, with values that differ between items. None = no entry fits, or
    not all items are objects: the items are then compared by their positions in the list.
    """
    if not items or not all(isinstance(item, Mapping) for item in items):
        return None
    for keys in IDENTITIES:
        values = [tuple(item.get(key) for key in keys) for item in items]
        if all(keys[0] in item for item in items) and all(
            key in item for item in items for key in keys[1:]
        ) and len(set(map(repr, values))) == len(values):  # fmt: skip
            return keys
    return None


def _same(desired: Any, observed: Any, quantity: bool) -> bool:
    if quantity:
        desired_units, observed_units = _units(desired), _units(observed)
        if desired_units is not None and observed_units is not None:
            return desired_units == observed_units
    # The API server drops empty strings and false of omitempty fields.
    if observed is None and desired in ("", False, 0):
        return True
    return bool(desired == observed) and isinstance(desired, bool) == isinstance(observed, bool)


def _units(value: Any) -> Decimal | None:
    """Return the amount of a quantity, in every notation that a pod template may use; None if it is none.

    More notations are valid than in the API of MambaDeployments: the API server also reads
    129e6, .5, +1 and a bare 0.5, and returns another spelling of the same amount.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    match = _QUANTITY.fullmatch(str(value).strip())
    if match is None:
        return None
    number, exponent, suffix = match.groups()
    if exponent:
        return Decimal(number + exponent)
    return Decimal(number) * SUFFIXES[suffix] if suffix in SUFFIXES else None
