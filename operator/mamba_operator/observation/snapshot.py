"""`Snapshot`: everything that one pass knows, read once and never changed. Pure data.

Built by `observe` and completed by `reconcile` from `Sources`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mamba_api import names
from mamba_api.choices import ROLES, Role
from mamba_api.v1alpha1 import PlanStatus
from mamba_operator.autoscale.scaling_record import LatestDecision
from mamba_operator.canary.analysis import CanaryFigures
from mamba_operator.objects.manifest import Key, Manifest, Ref
from mamba_operator.objects.pod_trouble import is_candidate, is_engine, role_of
from mamba_operator.observation.placement import Node
from mamba_operator.rollout.adapter_outcome import AdapterOutcome
from mamba_operator.rollout.attempts import Attempts
from mamba_operator.rollout.rollback import EngineTimes
from mamba_operator.workload.measured_workload import MeasuredWorkload

DownloadProgress = tuple[int, int]
"""(bytes that a loader has fetched, bytes that it fetches in total)."""


@dataclass(frozen=True, slots=True)
class ReportedPlan:
    """A memory plan that an engine computed for itself and reported to the operator."""

    revision: str
    """Revision of the engine's pod."""
    plan: PlanStatus


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One MambaDeployment or MambaGateway as a pass has read it, with its children, pods and nodes."""

    key: Key
    owner: Manifest | None
    """The object as the API server returned it; None when it is gone."""
    children: Mapping[Ref, Manifest] = field(default_factory=dict)
    """Objects with the labels of the owner's children that the owner controls by owner reference."""
    foreign: Mapping[Ref, Manifest] = field(default_factory=dict)
    """Objects with the labels of the owner's children that the owner does not control. The operator takes one
    over only if it is a former child of a deleted object with the same kind and name."""
    pods: tuple[Manifest, ...] = ()
    """Pods of engines, gateways and loaders."""
    not_served: Mapping[str, str] = field(default_factory=dict)
    """Optional kinds that this cluster does not serve, each with the reason."""
    model_config: Mapping[str, Any] | None = None
    """config.json of the model, if the model ships with the package; otherwise None."""
    nodes: tuple[Node, ...] = ()
    """Nodes with GPUs; empty where the spec states the memory, or nodes may not be read."""

    accepted: Mapping[str, str] = field(default_factory=dict)
    """Hash of the child, by uid, for each child that the API server or a webhook changed when the operator
    wrote it. While the child has that hash, writing it again would change nothing."""

    up_to_date: Mapping[str, str] = field(default_factory=dict)
    """Version of the child and hash of its manifest, by uid, from the last time that both matched. The same
    two need not be compared field by field again."""

    sent_settings: Mapping[str, str] = field(default_factory=dict)
    """Hash of the live settings that an engine has accepted, by run of the engine (see
    `SettingsUpdate.run`)."""

    adapter_outcomes: Mapping[str, AdapterOutcome] = field(default_factory=dict)
    """Result of the last attempt to give an engine its adapters, by run of the engine."""

    latest_decision: LatestDecision | None = None
    """Last decision of the autoscaler about the engines of `role`."""

    decisions_by_role: Mapping[Role, LatestDecision] = field(default_factory=dict)
    """Last decision of the autoscaler about the engines of each role."""

    cache_shared: bool = False
    """Whether another MambaDeployment uses the volume of the model cache."""

    attempts: Mapping[str, Attempts] = field(default_factory=dict)
    """Recent attempts of requests at engines, by revision; filled only while engines of two revisions run."""

    canary: CanaryFigures | None = None
    """Figures of a canary's requests; None without a canary, or before there are any."""

    may_begin: bool = True
    """Whether a roll-out may begin although nobody has edited the object: fewer of them run than are
    allowed."""

    engine_times: EngineTimes = field(default_factory=EngineTimes)
    """Since when each engine has been failing, and since when no engine has changed."""

    downloads: Mapping[str, DownloadProgress] = field(default_factory=dict)
    """Last reported progress of each running loader pod, by its name."""

    reported: ReportedPlan | None = None
    """Plan that an engine of `role` reported last; None = none was fetched, as where the operator plans."""

    reported_by_role: Mapping[Role, ReportedPlan] = field(default_factory=dict)
    """Plan that an engine of each role has reported last."""

    measured: MeasuredWorkload | None = None
    """The workload that the engines of `role` measure; None while there is too little traffic, or none."""

    measured_by_role: Mapping[Role, MeasuredWorkload] = field(default_factory=dict)
    """The workload that the engines of each role measure."""

    role: Role = "unified"
    """Role of the engines in `pods`, in a snapshot of `of_pool`; otherwise `pods` has all engines."""

    candidates: tuple[Manifest, ...] = ()
    """Engine pods of a canary's new revision, where `pods` are the pods of one role."""

    @property
    def names(self) -> names.Children:
        """Names of the children; the names of the engines' children are by `role`."""
        return names.Children(self.key.name, self.role)

    @property
    def engine(self) -> Manifest | None:
        """The engine Deployment of `role`; None if it does not exist."""
        return self.child("Deployment", self.names.engine)

    @property
    def roles(self) -> tuple[Role, ...]:
        """Roles of which there is an engine Deployment."""
        return tuple(
            role
            for role in ROLES
            if self.child("Deployment", names.Children(self.key.name, role).engine) is not None
        )

    def of_pool(self, role: Role) -> "Snapshot":
        """Return the snapshot with the engines of one role, all gateways and all loaders.

        The candidates of a canary belong to no role's Deployment, and are left out.
        """
        pods = tuple(
            pod for pod in self.pods if not is_engine(pod) or (role_of(pod) == role and not is_candidate(pod))
        )
        if role == "unified":
            candidates = tuple(pod for pod in self.pods if is_engine(pod) and is_candidate(pod))
            return replace(self, pods=pods, candidates=candidates, role=role)
        return replace(
            self,
            pods=pods,
            role=role,
            reported=self.reported_by_role.get(role),
            measured=self.measured_by_role.get(role),
            latest_decision=self.decisions_by_role.get(role),
        )

    @property
    def uid(self) -> str:
        """uid of the owner; empty when the owner is gone."""
        return str(self.owner["metadata"].get("uid", "")) if self.owner else ""

    def child(self, kind: str, name: str) -> Manifest | None:
        """Return a child by kind and name; None if it does not exist."""
        return self.children.get(Ref(kind, name))


ShippedConfig = Callable[[str], Mapping[str, Any] | None]
"""Returns the config.json of the shipped model at a builtin:// URI; None when there is no such model."""


def nothing_shipped(_uri: str) -> None:
    """Return None: the function of a process that ships no models."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Functions by which every pass gets facts that the API server does not know."""

    latest_decisions: Callable[[Key], Mapping[Role, LatestDecision]] = lambda _: {}
    attempts: Callable[[Key], Mapping[str, Attempts]] = lambda _: {}
    downloads: Callable[[Key], Mapping[str, DownloadProgress]] = lambda _: {}
    reported: Callable[[Key], Mapping[Role, ReportedPlan]] = lambda _: {}
    measured: Callable[[Key], Mapping[Role, MeasuredWorkload]] = lambda _: {}
    shipped: ShippedConfig = nothing_shipped
    canary: Callable[[Key], CanaryFigures | None] = lambda _: None
