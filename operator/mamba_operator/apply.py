"""`apply`: carries a plan out, child by child, and tells what was done and what failed.

One failing child does not keep the others from being applied. Called by `reconcile`; decides nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from mamba_api import names
from mamba_api.v1alpha1.conditions import ConditionType
from mamba_operator.children.changes import Apply, Change, Delete
from mamba_operator.children.child_comparison import version_hash
from mamba_operator.children.drift import drift, made_of
from mamba_operator.decision.reconcile_plan import ReconcilePlan
from mamba_operator.objects.client import KubeClient
from mamba_operator.objects.errors import (
    Conflict,
    NameTaken,
    NotInSchema,
    OperatorError,
    Terminating,
    Unreachable,
)
from mamba_operator.objects.kinds import BY_NAME
from mamba_operator.objects.manifest import (
    Manifest,
    Ref,
    is_terminating,
    metadata,
    owner_name,
    owner_uid,
    ref,
)
from mamba_operator.observation.snapshot import Snapshot

OnCreated = Callable[[Manifest], None]
"""Told of each child that was not there before, as it is now."""


@dataclass(frozen=True, slots=True)
class AppliedChange:
    """One change that was made."""

    ref: Ref
    change: Change
    detail: str = ""


@dataclass(slots=True)
class ApplyResult:
    """What came of a plan."""

    applied: list[AppliedChange] = field(default_factory=list)
    errors: list[OperatorError] = field(default_factory=list)
    accepted: dict[str, str] = field(default_factory=dict)
    """As `Snapshot.accepted`, of the children that were written."""
    up_to_date: dict[str, str] = field(default_factory=dict)
    """As `Snapshot.up_to_date`, of those among them that came out as they were sent."""


async def apply(
    client: KubeClient, snapshot: Snapshot, plan: ReconcilePlan, on_created: OnCreated = lambda _: None
) -> ApplyResult:
    """Apply, then delete, in the plan's order; when the API server goes away, the rest is left out."""
    outcome = ApplyResult()
    for one in plan.terminating:
        outcome.errors.append(Terminating(f"{one} is being deleted and is made again when it is gone"))
    try:
        token_missing = False
        for change in plan.applies:
            if token_missing and _mounts_token(change.manifest):
                # Without engines the next pass tries both again; with them nothing tells what is missing.
                continue
            try:
                if await _apply(client, snapshot, change, outcome, on_created):
                    outcome.applied.append(AppliedChange(ref(change.manifest), change.change, change.detail))
            except Unreachable:
                raise
            except NotInSchema as error:
                outcome.errors.append(_as_spec_error(change.manifest, error))
            except OperatorError as error:
                outcome.errors.append(error)
                token_missing = token_missing or change.create_only
        for removal in plan.deletes:
            try:
                await _delete(client, snapshot, removal)
                outcome.applied.append(AppliedChange(removal.ref, removal.change))
            except Unreachable:
                raise
            except Conflict:
                # It was replaced in between: the next pass sees what is there now.
                continue
            except OperatorError as error:
                outcome.errors.append(error)
    except Unreachable as error:
        outcome.errors.append(error)
    return outcome


async def _apply(
    client: KubeClient, snapshot: Snapshot, change: Apply, outcome: ApplyResult, on_created: OnCreated
) -> bool:
    """Whether the child is another one than before."""
    one = ref(change.manifest)
    before = snapshot.children.get(one)
    if change.create_only:
        try:
            await client.create(change.manifest)
        except Conflict:
            # It is there; what is in it counts.
            return False
        return True
    if before is None:
        after = await _make(client, snapshot, change.manifest)
        on_created(after)
    else:
        after = await _change(client, change.manifest, before)
    uid = str(metadata(after).get("uid"))
    if drift(change.manifest, after):
        outcome.accepted[uid] = made_of(change.manifest, after)
    else:
        outcome.up_to_date[uid] = version_hash(change.manifest, after)
    return before is None or metadata(after).get("resourceVersion") != metadata(before).get("resourceVersion")


def _mounts_token(manifest: Manifest) -> bool:
    labels = manifest["metadata"].get("labels") or {}
    return manifest["kind"] == "Deployment" and labels.get(names.LABEL_COMPONENT) == "engine"


def _as_spec_error(manifest: Manifest, error: NotInSchema) -> OperatorError:
    """The error by the field it came from: in what we render, only what users wrote is unchecked."""
    inside = error.path.removeprefix(".spec.template")
    if manifest["kind"] != "Deployment" or inside == error.path:
        return error
    component = manifest["metadata"]["labels"][names.LABEL_COMPONENT]
    field = "spec.gateway.podTemplate" if component == "gateway" else "spec.podTemplate"
    message = f"{field}{inside}: {error.complaint}"
    return NotInSchema(message, path=error.path, complaint=error.complaint)


def _same_object(manifest: Manifest, before: Manifest) -> Manifest:
    """The uid keeps a change from reaching another object that got the name since we looked."""
    return {**manifest, "metadata": {**manifest["metadata"], "uid": before["metadata"]["uid"]}}


async def _make(client: KubeClient, snapshot: Snapshot, manifest: Manifest) -> Manifest:
    """Whatever has the name already is looked at first: an apply with force would take it over."""
    try:
        return await client.make(manifest)
    except Conflict:
        one = ref(manifest)
        found = await client.list(BY_NAME[one.kind], snapshot.key.namespace, name=one.name)
        if not found:
            # It went in between: the next pass makes it.
            raise
        _check_ownership(found[0], snapshot, one)
        return await _change(client, manifest, found[0])


async def _change(client: KubeClient, manifest: Manifest, before: Manifest) -> Manifest:
    """The child as it is now. The first change of one that was created makes its fields ours by Apply."""
    await client.own(before)
    return await client.apply(_same_object(manifest, before))


def _check_ownership(found: Manifest, snapshot: Snapshot, child: Ref) -> None:
    """Raises `Terminating` or `NameTaken` where a name is not ours."""
    if owner_uid(found) == snapshot.uid or (_is_orphan(found, snapshot) and not is_terminating(found)):
        return
    other_owner = owner_name(found)
    if is_terminating(found) or other_owner == snapshot.key.name:
        raise Terminating(f"{child} of an earlier {snapshot.key.name} is being collected")
    whose = (
        f"belongs to the MambaDeployment {other_owner}"
        if other_owner
        else "does not belong to this MambaDeployment"
    )
    raise NameTaken(f"{child} exists and {whose}: rename the one or the other, or delete it")


def _is_orphan(found: Manifest, snapshot: Snapshot) -> bool:
    """Whether an operator made it for an object of this name that was deleted and left it behind: nobody
    controls it, and it says so itself."""
    meta = metadata(found)
    labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
    controlled = any(one.get("controller") for one in meta.get("ownerReferences") or ())
    named = labels.get(names.LABEL_INSTANCE) == snapshot.key.name
    made = labels.get(names.LABEL_MANAGED_BY) == names.MANAGED_BY and names.ANNOTATION_SPEC_HASH in notes
    return named and made and not controlled


async def _delete(client: KubeClient, snapshot: Snapshot, removal: Delete) -> None:
    await client.delete(BY_NAME[removal.ref.kind], snapshot.key.namespace, removal.ref.name, removal.uid)


def status_manifest(owner: Manifest, status: Manifest) -> Manifest:
    """What the one status write sends, for the very version that was observed.

    The version keeps it from a newer object of the same name: with a status the API server ignores the uid.
    Conditions of others are left out: to send what we saw of them would undo what they wrote since.
    """
    meta = owner["metadata"]
    ours = [one for one in status.get("conditions") or () if one["type"] in set(ConditionType)]
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "metadata": {key: meta[key] for key in ("name", "namespace", "resourceVersion")},
        "status": {**status, "conditions": ours},
    }
