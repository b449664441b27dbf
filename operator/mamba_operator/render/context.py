"""`Context`: what all builders of children are given; the metadata and the numbers they all write. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from mamba_api import names
from mamba_api.v1alpha1 import MambaDeployment, PlanStatus
from mamba_operator.objects.kinds import Kind
from mamba_operator.objects.manifest import Manifest
from mamba_operator.render.default_images import OF_THIS_VERSION, DefaultImages
from mamba_operator.render.revision import EngineRevision
from mamba_operator.render.scrapers import OPERATOR, PROMETHEUS, Scraper
from mamba_planner.model_report import ModelReport


@dataclass(frozen=True, slots=True)
class Context:
    """One MambaDeployment, as far as its children depend on it."""

    deployment: MambaDeployment
    replicas: int
    """Engines wanted."""
    plan: PlanStatus | None
    """What the planner chose; None while it is unknown, then the engine plans for itself."""
    key_id: str = ""
    """Key that the admin token is made from; empty: the token is not known, and engines cannot be told."""
    tuned: str | None = None
    """Annotation with the settings that running engines take over; None where they cannot be told."""
    planned_for: str | None = None
    """Annotation with what the plan was made for; None where the spec says how much memory there is."""
    chosen_for: str | None = None
    """Annotation with the measured traffic that the strategy was chosen for; None where it was not."""
    loaded: ModelReport | None = None
    """What the loader downloaded to the model cache; None where there is no cache, or nothing in it yet."""
    revision: EngineRevision | None = None
    """What engines are started with, once that was chosen; None: the spec's own."""
    failed: str | None = None
    """Annotation that says that the spec's own has failed."""
    in_place: bool = False
    """An old engine goes before a new one comes."""
    missing: int = 0
    """Engines that may be missing during a roll-out, where that is more than the spec says."""
    retry: str | None = None
    """Annotation whose change makes the cluster try at once to make an engine that a quota refused."""
    key_presented: bool = False
    """Gateways show engines a key."""
    key_required: bool = False
    """Engines ask for it."""
    images: DefaultImages = OF_THIS_VERSION
    """Used where the spec names none."""
    scrapers: tuple[Scraper, ...] = PROMETHEUS
    """Who may read the engines' metrics, beside gateway and operator."""
    operator: Scraper = OPERATOR
    """The operator's own pods."""

    @property
    def children(self) -> names.Children:
        """Names of the children."""
        return names.Children(self.deployment.name)

    @property
    def own_claim(self) -> str | None:
        """Claim of the user's that engine pods fill with the model; None where there is none."""
        cache = self.deployment.spec.model.cache
        return cache.claim_name if cache is not None else None

    @property
    def admin_secret(self) -> str:
        """Name of the Secret with the engines' admin token."""
        return self.children.admin_secret(self.deployment.metadata.uid or "", self.key_id)


def child(
    context: Context,
    kind: Kind,
    name: str,
    component: names.Component,
    annotations: Mapping[str, str] | None = None,
) -> Manifest:
    """The head of a child: identity, labels, and the owner reference that lets the cluster collect it."""
    deployment = context.deployment
    metadata: Manifest = {
        "name": name,
        "namespace": deployment.namespace,
        "labels": names.labels(deployment.name, component),
        "ownerReferences": [
            {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "name": deployment.name,
                "uid": deployment.metadata.uid or "",
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}


def number(value: float) -> str:
    """Reads back as the very same number; `:g` would keep six digits of it."""
    return repr(float(value)).removesuffix(".0")
