"""`Snapshot`: everything one reconcile knows, read once and never changed. Made by `observe`; pure data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mamba_api.v1alpha1 import PlanStatus
from mamba_operator.autoscale.scaling_record import LatestDecision
from mamba_operator.objects.manifest import Key, Manifest, Ref
from mamba_operator.observation.placement import Node
from mamba_operator.rollout.attempts import Attempts
from mamba_operator.rollout.engine_history import EngineTimes
from mamba_operator.workload.measured_workload import MeasuredWorkload

DownloadProgress = tuple[int, int]
"""Bytes that a loader has fetched, of those that it fetches in all."""


@dataclass(frozen=True, slots=True)
class ReportedPlan:
    """The plan that an engine made for itself and reported."""

    revision: str
    """Of its pod."""
    plan: PlanStatus


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One MambaDeployment and what exists around it."""

    key: Key
    owner: Manifest | None
    """The MambaDeployment as the API server gave it; None when it is gone."""
    children: Mapping[Ref, Manifest] = field(default_factory=dict)
    """Objects with its labels that it controls by owner reference."""
    foreign: Mapping[Ref, Manifest] = field(default_factory=dict)
    """Objects with its labels that it does not control: only an orphan of its own name is ever touched."""
    pods: tuple[Manifest, ...] = ()
    """Pods of engines and gateway."""
    not_served: Mapping[str, str] = field(default_factory=dict)
    """Optional kinds that cannot be had here, each with the reason."""
    model_config: Mapping[str, Any] | None = None
    """config.json of a model that ships with the package; None = only the spec may say it."""
    nodes: tuple[Node, ...] = ()
    """Those with GPUs; empty where the spec says how much memory there is, or nodes may not be read."""

    accepted: Mapping[str, str] = field(default_factory=dict)
    """By uid of a child that the API server, or a webhook of it, made into something else than was applied:
    hash of what it made. As long as it is that, applying it again would change nothing."""

    up_to_date: Mapping[str, str] = field(default_factory=dict)
    """By uid of a child: its version and the hash of what was wanted when it was last found to be that. The
    same two need not be compared field by field again."""

    sent_settings: Mapping[str, str] = field(default_factory=dict)
    """By run of an engine: hash of the live settings that it was sent and accepted."""

    latest_decision: LatestDecision | None = None
    """What the autoscaler last decided about it."""

    cache_shared: bool = False
    """Whether another MambaDeployment uses the volume of its model cache."""

    attempts: Mapping[str, Attempts] = field(default_factory=dict)
    """By revision of engines: how requests fared lately, while engines of two revisions run."""

    may_begin: bool = True
    """Whether a roll-out that nobody asked for may begin: so many others are not under way."""

    engine_times: EngineTimes = field(default_factory=EngineTimes)
    """Since when engines fail, and since when none has moved."""

    downloads: Mapping[str, DownloadProgress] = field(default_factory=dict)
    """By name of a running loader pod: its last reported progress."""

    reported: ReportedPlan | None = None
    """The plan that an engine reported last, where engines plan for themselves."""

    measured: MeasuredWorkload | None = None
    """The workload that its engines measure; None while there is too little traffic or no report."""

    @property
    def uid(self) -> str:
        """Identity of the owner; empty when it is gone."""
        return str(self.owner["metadata"].get("uid", "")) if self.owner else ""

    def child(self, kind: str, name: str) -> Manifest | None:
        """One child, if it exists."""
        return self.children.get(Ref(kind, name))
