"""`compare_children`: the children that are wanted beside those that are there. Pure; called by `plan`.

A child is compared by the hash of what was applied and then field by field, unless this very version of it
was found to be what is wanted before.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mamba_api import names
from mamba_operator.children.cache_claim import why_unchanged
from mamba_operator.children.changes import Apply, Change, Delete
from mamba_operator.children.drift import drift, made_of
from mamba_operator.objects.kinds import CLAIM
from mamba_operator.objects.manifest import Manifest, Ref, annotation, is_terminating, metadata, ref
from mamba_operator.observation.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class ChildComparison:
    """The result: children to apply, and those that are up to date."""

    applies: tuple[Apply, ...]
    """In the order of the children."""
    up_to_date: dict[str, str]
    """As `Snapshot.up_to_date`, of those that are as wanted now."""
    cache_kept: str | None
    """Why the claim of the model cache stays as it is though another is wanted: it is no apply then."""


def compare_children(wanted: Sequence[Manifest], snapshot: Snapshot) -> ChildComparison:
    """What to do about each child that is wanted."""
    cache_kept = _cache_kept(wanted, snapshot)
    up_to_date: dict[str, str] = {}
    applies = [
        apply
        for manifest in wanted
        if not (cache_kept and manifest["kind"] == CLAIM.kind)
        and (apply := _compare(manifest, snapshot, up_to_date)) is not None
    ]
    return ChildComparison(tuple(applies), up_to_date, cache_kept)


def _cache_kept(wanted: Iterable[Manifest], snapshot: Snapshot) -> str | None:
    claims = [(one, snapshot.children.get(ref(one))) for one in wanted if one["kind"] == CLAIM.kind]
    return next((said for one, there in claims if there and (said := why_unchanged(one, there))), None)


def _compare(manifest: Manifest, snapshot: Snapshot, up_to_date: dict[str, str]) -> Apply | None:
    """What to do about one child; `up_to_date` gets it if that is nothing."""
    observed = snapshot.children.get(ref(manifest))
    if observed is None:
        return Apply(manifest, Change.MISSING)
    wanted = annotation(manifest, names.ANNOTATION_SPEC_HASH)
    if annotation(observed, names.ANNOTATION_SPEC_HASH) != wanted:
        return Apply(manifest, Change.OUTDATED)
    uid = str(metadata(observed).get("uid"))
    both = version_hash(manifest, observed)
    if snapshot.up_to_date.get(uid) != both:
        fields = drift(manifest, observed)
        if fields and snapshot.accepted.get(uid) != made_of(manifest, observed):
            return Apply(manifest, Change.DRIFTED, ", ".join(fields))
    up_to_date[uid] = both
    return None


def version_hash(wanted: Manifest, observed: Manifest) -> str:
    """What `Snapshot.up_to_date` says of a child that is, in this version, what was wanted."""
    return f"{metadata(observed).get('resourceVersion')} {annotation(wanted, names.ANNOTATION_SPEC_HASH)}"


def is_being_deleted(one: Ref, snapshot: Snapshot) -> bool:
    """Whether the child is there and on its way out."""
    child = snapshot.children.get(one)
    return child is not None and is_terminating(child)


def unneeded_children(snapshot: Snapshot, keep: set[Ref]) -> tuple[Delete, ...]:
    """Removal of the children that are not to be kept."""
    return tuple(
        Delete(one, str(child["metadata"]["uid"]))
        for one, child in sorted(snapshot.children.items())
        # The volume with the downloaded weights outlives a change of mind; it goes with its owner.
        if one not in keep and not is_terminating(child) and one.kind != CLAIM.kind
    )
