"""`apply`: carries a reconcile plan out, child by child, and returns the changes and the errors.

The failure of one child does not keep the others from being written. Called by `reconcile`; decides nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from mamba_api import names
from mamba_api.v1alpha1.conditions import ConditionType
from mamba_api.v1alpha1.gateway_status import GatewayConditionType
from mamba_operator.children.child_comparison import Apply, Change, Delete, drift, observed_hash, version_hash
from mamba_operator.decision.reconcile_plan import ReconcilePlan
from mamba_operator.objects.client import KubeClient
from mamba_operator.objects.errors import (
    Conflict,
    ImageVolumesMissing,
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
    owner_identity,
    owner_uid,
    ref,
)
from mamba_operator.observation.snapshot import Snapshot
from mamba_operator.render.engine_pod import MODEL_VOLUME

NO_IMAGE_VOLUMES = (
    "spec.model.imageVolume: the API server of this cluster has no volumes of images; remove imageVolume, so "
    "that engines download the model, or enable the feature gate ImageVolume (Kubernetes 1.33 and later)"
)
OnCreated = Callable[[Manifest], None]
"""Called with each child that was created, as the API server returned it."""


@dataclass(frozen=True, slots=True)
class AppliedChange:
    """One change that a pass has made to a child."""

    ref: Ref
    change: Change
    detail: str = ""
    """Fields that differed, in words; empty for other changes."""


@dataclass(slots=True)
class ApplyResult:
    """The changes that a pass has made to the children, and the errors of those that failed."""

    applied: list[AppliedChange] = field(default_factory=list)
    errors: list[OperatorError] = field(default_factory=list)
    accepted: dict[str, str] = field(default_factory=dict)
    """Value of `Snapshot.accepted` for the written children that the API server changed."""
    up_to_date: dict[str, str] = field(default_factory=dict)
    """Value of `Snapshot.up_to_date` for the written children that the API server did not change."""


async def apply(
    client: KubeClient, snapshot: Snapshot, plan: ReconcilePlan, on_created: OnCreated = lambda _: None
) -> ApplyResult:
    """Write the plan's children, then delete those that it removes, in the plan's order.

    `on_created` is called with each created child. The work stops if the API server becomes unreachable.
    """
    outcome = ApplyResult()
    for child in plan.terminating:
        outcome.errors.append(
            Terminating(f"{child} is being deleted; the operator creates it again when it is gone")
        )
    try:
        token_missing = False
        for change in plan.applies:
            if token_missing and _mounts_token(change.manifest):
                # Engines without their Secret would wait without a message; the next pass tries both again.
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
                # The child was replaced since it was observed; the next pass sees the new one.
                continue
            except OperatorError as error:
                outcome.errors.append(error)
    except Unreachable as error:
        outcome.errors.append(error)
    return outcome


async def _apply(
    client: KubeClient, snapshot: Snapshot, change: Apply, outcome: ApplyResult, on_created: OnCreated
) -> bool:
    """Write one child, and return whether that changed the child.

    A created child is passed to `on_created`. The hashes by which later passes compare the child are written
    to `outcome`.
    """
    before = snapshot.children.get(ref(change.manifest))
    await _check_image_volumes(client, change.manifest)
    if change.create_only:
        try:
            await client.create(change.manifest)
        except Conflict:
            # The child exists, and its content is kept.
            return False
        return True
    if before is None:
        after = await _make(client, snapshot, change.manifest)
        on_created(after)
    else:
        after = await _change(client, change.manifest, before)
    uid = str(metadata(after).get("uid"))
    if drift(change.manifest, after):
        outcome.accepted[uid] = observed_hash(change.manifest, after)
    else:
        outcome.up_to_date[uid] = version_hash(change.manifest, after)
    return before is None or metadata(after).get("resourceVersion") != metadata(before).get("resourceVersion")


def _mounts_token(manifest: Manifest) -> bool:
    labels = manifest["metadata"].get("labels") or {}
    return manifest["kind"] == "Deployment" and labels.get(names.LABEL_COMPONENT) == "engine"


def _as_spec_error(manifest: Manifest, error: NotInSchema) -> OperatorError:
    """Return the error with the name of the field of the spec that caused it.

    Only fields of pod templates can be wrong: the API server checks all others of the spec itself.
    """
    inside = error.path.removeprefix(".spec.template")
    if manifest["kind"] != "Deployment" or inside == error.path:
        return error
    labels = manifest["metadata"]["labels"]
    kind, _ = names.owner_of_instance(labels[names.LABEL_INSTANCE])
    of_gateway = labels[names.LABEL_COMPONENT] == "gateway" and kind == names.KIND
    field = "spec.gateway.podTemplate" if of_gateway else "spec.podTemplate"
    message = f"{field}{inside}: {error.complaint}; correct or remove the field"
    return NotInSchema(message, path=error.path, complaint=error.complaint)


def _mounts_model(manifest: Manifest) -> bool:
    """Return whether the pods of a Deployment mount the image of the model as a volume."""
    if manifest["kind"] != "Deployment":
        return False
    volumes = manifest["spec"]["template"]["spec"].get("volumes") or ()
    return any(volume["name"] == MODEL_VOLUME and "image" in volume for volume in volumes)


async def _check_image_volumes(client: KubeClient, manifest: Manifest) -> None:
    """Check that the API server would store the image of the model as a volume of the pods.

    A server whose feature gate is closed drops such volumes and their mounts without a word, and engines
    would start without a model. Raises ImageVolumesMissing.
    """
    if not _mounts_model(manifest):
        return
    try:
        stored = await client.apply(manifest, dry_run=True)
    except NotInSchema as error:
        if ".volumes[" in error.path and error.path.endswith(".image"):
            raise ImageVolumesMissing(NO_IMAGE_VOLUMES, status=error.status) from error
        raise
    if not _mounts_model(stored):
        raise ImageVolumesMissing(NO_IMAGE_VOLUMES)


def _same_object(manifest: Manifest, before: Manifest) -> Manifest:
    """Return the manifest with the observed uid, so that it cannot change a newer object of the same name."""
    return {**manifest, "metadata": {**manifest["metadata"], "uid": before["metadata"]["uid"]}}


async def _make(client: KubeClient, snapshot: Snapshot, manifest: Manifest) -> Manifest:
    """Create a child and return it, or change the object that has its name and the same owner.

    An apply alone would take over the object of another owner. Raises Terminating and NameTaken, as
    `_check_ownership` does.
    """
    try:
        return await client.make(manifest)
    except Conflict:
        child = ref(manifest)
        holders = await client.list(BY_NAME[child.kind], snapshot.key.namespace, name=child.name)
        if not holders:
            # The object with that name has been deleted meanwhile; the next pass creates the child.
            raise
        _check_ownership(holders[0], snapshot, child)
        return await _change(client, manifest, holders[0])


async def _change(client: KubeClient, manifest: Manifest, before: Manifest) -> Manifest:
    """Change a child and return it. Before its first change, convert the ownership of its fields to Apply."""
    await client.own(before)
    return await client.apply(_same_object(manifest, before))


def _check_ownership(holder: Manifest, snapshot: Snapshot, child: Ref) -> None:
    """Check that the object with a child's name belongs to the owner of this pass.

    Raises:
        Terminating: the object is being deleted.
        NameTaken: the object belongs to somebody else.
    """
    if owner_uid(holder) == snapshot.uid or (_is_orphan(holder, snapshot) and not is_terminating(holder)):
        return
    key, other_owner = snapshot.key, owner_identity(holder)
    if is_terminating(holder) or other_owner == (key.kind, key.name):
        raise Terminating(
            f"Kubernetes is still deleting {child} of an earlier {key.name}; the operator creates it again "
            "when it is gone"
        )
    owner_text = (
        f"belongs to the {' '.join(other_owner)}" if other_owner else f"does not belong to this {key.kind}"
    )
    raise NameTaken(f"{child} exists and {owner_text}: rename one of the two, or delete it")


def _is_orphan(holder: Manifest, snapshot: Snapshot) -> bool:
    """Return whether the object is a child of a deleted object of this kind and name.

    Such an object has our label and annotation, and no controller.
    """
    meta = metadata(holder)
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    controlled = any(owner.get("controller") for owner in meta.get("ownerReferences") or ())
    same_name = labels.get(names.LABEL_INSTANCE) == snapshot.key.instance
    managed = labels.get(names.LABEL_MANAGED_BY) == names.MANAGED_BY
    return same_name and managed and names.ANNOTATION_SPEC_HASH in annotations and not controlled


async def _delete(client: KubeClient, snapshot: Snapshot, removal: Delete) -> None:
    await client.delete(BY_NAME[removal.ref.kind], snapshot.key.namespace, removal.ref.name, removal.uid)


def status_manifest(owner: Manifest, status: Manifest) -> Manifest:
    """Return the manifest of the status write, for exactly the version that was observed.

    The version protects a newer object of the same name, because the API server ignores the uid of a status
    write. Conditions of other writers are left out, since an observed value could undo a later write.
    """
    meta = owner["metadata"]
    types: type[StrEnum] = GatewayConditionType if owner["kind"] == names.GATEWAY_KIND else ConditionType
    ours = [condition for condition in status.get("conditions") or () if condition["type"] in set(types)]
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "metadata": {key: meta[key] for key in ("name", "namespace", "resourceVersion")},
        "status": {**status, "conditions": ours},
    }
