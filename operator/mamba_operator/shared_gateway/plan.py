"""`plan_gateway`: decides what has to change for one MambaGateway. Pure; called by `GatewayReconciler`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import ValidationError

from mamba_api import names
from mamba_api.v1alpha1.conditions import Reason
from mamba_api.v1alpha1.documents import explain
from mamba_api.v1alpha1.mamba_gateway import MambaGateway
from mamba_operator.children.child_comparison import compare_children, is_being_deleted, unneeded_children
from mamba_operator.conditions.chain import Failure
from mamba_operator.decision.reconcile_plan import ReconcilePlan
from mamba_operator.objects.errors import InvalidPatch
from mamba_operator.objects.manifest import Manifest, is_terminating, ref
from mamba_operator.observation.snapshot import Snapshot
from mamba_operator.render.context import DefaultImages
from mamba_operator.shared_gateway.candidates import PresentsKey, candidates
from mamba_operator.shared_gateway.render import render
from mamba_operator.shared_gateway.resolution import Resolution, resolve
from mamba_settings.models_document import ModelsDocument


@dataclass(frozen=True, slots=True)
class GatewayPlan:
    """Decisions of one pass about a MambaGateway, and the changes that follow from them."""

    gateway: MambaGateway | None = None
    """The parsed object; None when it is being deleted or cannot be read."""
    resolution: Resolution | None = None
    failures: tuple[Failure, ...] = ()
    """Reasons why nothing may be changed."""
    changes: ReconcilePlan = field(default_factory=ReconcilePlan)
    """The children to write and to remove."""


def plan_gateway(
    snapshot: Snapshot,
    deployments: Sequence[Manifest],
    *,
    images: DefaultImages,
    presents_key: PresentsKey = lambda _: False,
) -> GatewayPlan:
    """Decide what has to change for the gateway of a snapshot.

    Args:
        snapshot: the gateway and its children.
        deployments: all MambaDeployments of the namespace.
        images: images of pods whose spec names none.
        presents_key: tells whether engines of a MambaDeployment may require a key.
    """
    owner = snapshot.owner
    if owner is None or is_terminating(owner):
        return GatewayPlan()
    try:
        gateway = MambaGateway.model_validate(_without_status(owner), by_alias=True, by_name=False)
    except ValidationError as error:
        text = "; ".join(explain(error, MambaGateway))
        return GatewayPlan(failures=(Failure(Reason.INVALID_SPEC, text),))
    chosen = candidates(gateway, deployments, _present_models(snapshot), presents_key)
    resolution = resolve(gateway.spec, chosen)
    try:
        rendered = render(gateway, resolution, images)
    except InvalidPatch as error:
        failure = Failure(error.condition_reason, f"spec.{error}")
        return GatewayPlan(gateway, resolution, (failure,))
    absent = snapshot.not_served
    children = [child for child in rendered if child["kind"] not in absent]
    compared = compare_children(children, snapshot)
    keep = set(map(ref, children))
    changes = ReconcilePlan(
        applies=tuple(one for one in compared.applies if not is_being_deleted(ref(one.manifest), snapshot)),
        deletes=unneeded_children(snapshot, keep),
        not_served=tuple(absent[child["kind"]] for child in rendered if child["kind"] in absent),
        terminating=tuple(sorted(child for child in keep if is_being_deleted(child, snapshot))),
        up_to_date=compared.up_to_date,
    )
    return GatewayPlan(gateway, resolution, (), changes)


def _without_status(owner: Manifest) -> Manifest:
    return {key: value for key, value in owner.items() if key != "status"}


def _present_models(snapshot: Snapshot) -> ModelsDocument | None:
    """Return the file of models as it is in the cluster; None if it is missing or invalid."""
    child = snapshot.child("ConfigMap", names.GatewayChildren(snapshot.key.name).models)
    data = child.get("data") if child is not None else None
    text = data.get(names.MODELS_KEY) if isinstance(data, Mapping) else None
    if not isinstance(text, str):
        return None
    try:
        return ModelsDocument.model_validate_json(text)
    except ValidationError:
        return None
