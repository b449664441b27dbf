"""`Context`: the input of all builders of children, and the metadata that every child has. Pure.

A context holds the object, the decisions about it, and what the settings of the operator say about every
child: `DefaultImages`, which are never written into MambaDeployments, and `Scraper`, a selection of pods that
may read the engines' metrics.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from pydantic_core import from_json

from mamba_api import names
from mamba_api.choices import Role, Transport
from mamba_api.v1alpha1 import MambaDeployment, PlanStatus
from mamba_api.v1alpha1.mamba_gateway import MambaGateway
from mamba_api.v1alpha1.profiles import Profiles
from mamba_operator.objects.kinds import Kind
from mamba_operator.objects.manifest import Manifest, digest
from mamba_planner.cards.shipped_profiles import SHIPPED
from mamba_planner.model_report import ModelReport


@dataclass(frozen=True, slots=True)
class DefaultImages:
    """The images that pods get if their MambaDeployment or MambaGateway names none.

    By default the images are of the operator's own version.
    """

    engine: str = names.IMAGE
    gateway: str = names.CONTROL_PLANE_IMAGE
    pull_secrets: tuple[str, ...] = ()
    """Names of Secrets for image pulls, which each MambaDeployment's namespace must have."""

    def references(self) -> list[dict[str, str]]:
        """Return the references by which a pod names the pull secrets."""
        return [{"name": name} for name in self.pull_secrets]


OF_THIS_VERSION = DefaultImages()
_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
LabelKey = Annotated[str, StringConstraints(pattern=rf"^([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_NAME}$")]
LabelValue = Annotated[str, StringConstraints(pattern=rf"^({_NAME})?$")]


class Scraper(BaseModel):
    """Selects the pods that may read metrics, by their labels and their namespace's.

    Without labels, all pods are selected.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    namespaces: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    """Labels of the namespace; kubernetes.io/metadata.name is the name of the namespace."""
    pods: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    """Labels of the pod."""

    def peer(self) -> dict[str, Any]:
        """Return the peer of a NetworkPolicy that selects the pods."""
        return {"namespaceSelector": _selector(self.namespaces), "podSelector": _selector(self.pods)}


def _selector(labels: dict[str, str]) -> dict[str, Any]:
    return {"matchLabels": dict(labels)} if labels else {}


def _read(value: Any) -> Any:
    return from_json(value) if isinstance(value, str) else value


Scrapers = Annotated[tuple[Scraper, ...], BeforeValidator(_read)]
PROMETHEUS = (Scraper(pods={names.LABEL_NAME: "prometheus"}),)


def operator_pods(namespace: str | None) -> Scraper:
    """Return the selection of the operator's own pods; `namespace` is None outside a cluster."""
    namespaces = {"kubernetes.io/metadata.name": namespace} if namespace else {}
    return Scraper(
        namespaces=namespaces, pods={names.LABEL_NAME: names.APP_NAME, names.LABEL_COMPONENT: "operator"}
    )


OPERATOR = operator_pods(None)


@dataclass(frozen=True, slots=True)
class EngineRevision:
    """One revision of the engines: their pod template, and the settings that pods read at their start."""

    template: Manifest = field(hash=False)
    document: dict[str, Any] = field(hash=False)
    """Settings, as `mambaserve serve --config FILE` reads them."""

    @property
    def label(self) -> str:
        """Value of the label `revision` of the pods: a hash of the template."""
        return str(self.template["metadata"]["labels"][names.LABEL_REVISION])

    @property
    def digest(self) -> str:
        """Hash of template and settings, including the settings that running engines apply."""
        return digest([self.template, self.document])


@dataclass(frozen=True, slots=True)
class Candidate:
    """The facts about a canary's candidate from which its children are rendered."""

    revision: EngineRevision
    replicas: int
    weight: int
    """Share of the conversations that the candidate gets, in per cent."""
    state: str
    """Text of the annotation `canary-state`."""
    shadow_percent: int = 0
    """Share of the conversations of which the candidate gets copies, in per cent."""
    shadow_copies: int = 0
    """Largest number of copies of one gateway at once."""


@dataclass(frozen=True, slots=True)
class Context:
    """Everything about one MambaDeployment from which its children are rendered."""

    deployment: MambaDeployment
    replicas: int
    """Number of engines that shall run."""
    plan: PlanStatus | None
    """Choice of the planner; None while it is unknown: the engine then plans for itself."""
    key_id: str = ""
    """Id of the key from which the admin token is derived; empty = the token is random, so that the operator
    cannot send updates to engines."""
    tuned: str | None = None
    """Annotation with hash and last change of the live settings; None where engines accept no updates."""
    adapters: str | None = None
    """Annotation with hash and last change of the adapters; None where engines accept no updates."""
    planned_for: str | None = None
    """Annotation with the GPU memory of the memory plan; None where the spec states the memory."""
    chosen_for: str | None = None
    """Annotation with the measured traffic for which the strategy was chosen; None without a measurement."""
    loaded: ModelReport | None = None
    """Report on the model in the model cache; None where there is no cache, or nothing in it yet."""
    revision: EngineRevision | None = None
    """Revision with which engines start, once it was chosen; None = the revision of the spec."""
    candidate: Candidate | None = None
    """Candidate of a canary; None = there is none."""
    failed: str | None = None
    """Annotation that records that the revision of the spec has failed."""
    in_place: bool = False
    """Whether an old engine stops before a new one starts."""
    missing: int = 0
    """Number of engines that may be missing during a roll-out, if the spec allows fewer."""
    retry: str | None = None
    """Annotation whose change makes the cluster create an engine at once that a quota has refused."""
    key_presented: bool = False
    """Whether gateways present a key to engines."""
    key_required: bool = False
    """Whether engines require the key."""
    images: DefaultImages = OF_THIS_VERSION
    """Images for pods whose spec names none."""
    scrapers: tuple[Scraper, ...] = PROMETHEUS
    """Pods that may read the engines' metrics, besides gateway and operator."""
    operator: Scraper = OPERATOR
    """The operator's own pods."""
    role: Role = "unified"
    """Role of the engines. If it is prefill or decode, `deployment` is the deployment of that pool alone."""
    hand_over_tokens: int | None = None
    """Fewest tokens of a prompt that prefill engines compute; None without pools."""
    transport: Transport = "Sockets"
    """How states travel between the engines."""

    @property
    def children(self) -> names.Children:
        """Names of the deployment's children; the names of the engines' children are those of the role."""
        return names.Children(self.deployment.name, self.role)

    @property
    def moves_states(self) -> bool:
        """Whether engines exchange cached states, which all engines with a prefix cache do."""
        return self.deployment.spec.state_cache.prefix_caching

    @property
    def own_claim(self) -> str | None:
        """Name of the user's own claim, which engine pods fill with the model; None = there is none."""
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
    """Return the beginning of a child's manifest: identity, labels, and the owner reference for its deletion.

    `component` is the part of the deployment that the child belongs to.
    """
    return owned(context.deployment, kind, name, component, annotations)


def owned(
    owner: MambaDeployment | MambaGateway,
    kind: Kind,
    name: str,
    component: names.Component,
    annotations: Mapping[str, str] | None = None,
) -> Manifest:
    """Return the beginning of the manifest of a child of `owner`: identity, labels, and owner reference."""
    metadata: Manifest = {
        "name": name,
        "namespace": owner.namespace,
        "labels": names.labels(names.instance(owner.kind, owner.name), component),
        "ownerReferences": [
            {
                "apiVersion": names.API_VERSION,
                "kind": owner.kind,
                "name": owner.name,
                "uid": owner.metadata.uid or "",
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}


def number(value: float) -> str:
    """Return a text that is parsed as exactly the same number; the format `:g` keeps only six digits."""
    return repr(float(value)).removesuffix(".0")


@dataclass(frozen=True, slots=True)
class ChildDefaults:
    """Values that children get if their MambaDeployment names none."""

    images: DefaultImages = OF_THIS_VERSION
    scrapers: tuple[Scraper, ...] = PROMETHEUS
    """Pods that may read the engines' metrics."""
    operator: Scraper = OPERATOR
    """The operator's own pods."""
    profiles: Profiles = field(default_factory=lambda: SHIPPED)
    """Profiles that `spec.resources.profile` may name."""
