"""`compare_children`: compares the desired children with the observed ones. Pure; called by `plan`.

A child is compared by the hash of the applied manifest and then field by field, unless the same version of it
was equal to the same manifest before.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mamba_api import names
from mamba_operator.children.changes import Apply, Change, Delete
from mamba_operator.children.drift import drift, observed_hash
from mamba_operator.model.cache_claim import why_unchanged
from mamba_operator.objects.kinds import CLAIM
from mamba_operator.objects.manifest import Manifest, Ref, annotation, is_terminating, metadata, ref
from mamba_operator.observation.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class ChildComparison:
    """Children to apply, and children that are up to date."""

    applies: tuple[Apply, ...]
    """Changes in the order of the desired children."""
    up_to_date: dict[str, str]
    """Value of `Snapshot.up_to_date` for the children that match their manifest now."""
    cache_kept: str | None
    """Why the claim of the model cache is not changed although another one is desired; it is not in
    `applies` then."""


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
    """Return the value in `Snapshot.up_to_date` of a child that matches its manifest in this version."""
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
