"""`ReconcilePlan`: all that one pass decided about one MambaDeployment. Pure data.

Made by `plan`; carried out by `apply`, reported by `status` and `pass_events`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mamba_api.v1alpha1 import MambaDeployment, ScalingStatus, WorkloadStatus
from mamba_operator.children.changes import Apply, Delete
from mamba_operator.decision.index_trouble import IndexTrouble
from mamba_operator.memory.plan_verdict import PlanVerdict
from mamba_operator.model.model_load import ModelLoad
from mamba_operator.objects.manifest import Ref
from mamba_operator.render.live_settings import RejectedUpdate, SettingsUpdate
from mamba_operator.rollout.rollback import FailedRevision


@dataclass(frozen=True, slots=True)
class ReconcilePlan:
    """What has to change, and what was decided on the way."""

    deployment: MambaDeployment | None = None
    """The parsed object, its profile filled in; None when it is gone, going, or broken."""
    verdict: PlanVerdict | None = None
    """What the planner says; None when the object is gone or going."""
    replicas: int | None = None
    """Engines wanted; None when nothing may be changed."""
    applies: tuple[Apply, ...] = ()
    deletes: tuple[Delete, ...] = ()
    not_served: tuple[str, ...] = ()
    """Why children that the spec asks for cannot be had in this cluster."""
    terminating: tuple[Ref, ...] = ()
    """Children that must be gone before they can be made again."""
    requeue_after: float | None = None
    """Seconds until time alone changes the plan."""
    index_trouble: IndexTrouble | None = None
    """What gateways say of the Redis of the prefix index."""
    plan_difference: str | None = None
    """What a new revision would be planned as, where that is another plan than the serving one."""
    settings_updates: tuple[SettingsUpdate, ...] = ()
    """Engines to be told settings that they take over while they serve."""
    rejected_updates: tuple[RejectedUpdate, ...] = ()
    """Those of them that were told and did not take it."""
    ready_revision: str | None = None
    """Label of the engine pods that were last ready, all of them."""
    failed: FailedRevision | None = None
    """The revision of the spec, where that did not become ready and engines went back."""
    scaling: ScalingStatus | None = None
    """What is decided about the number of engines; None where spec.replicas is what runs."""
    up_to_date: Mapping[str, str] = field(default_factory=dict)
    """As `Snapshot.up_to_date`, of all children that are as wanted now."""
    in_place: bool = False
    """An old engine goes before a new one comes: there is no room for both."""
    in_place_soon: bool = False
    """It will, once an engine that the roll-out adds has waited for room for long enough."""
    in_place_refused: bool = False
    """An engine that the roll-out adds has no room, and the spec lets no older one go for it."""
    queued: bool = False
    """Engines are to be replaced and wait for other roll-outs, since nobody asked for it."""
    begins_unasked: bool = False
    """Engines begin to be replaced, and nobody asked for it."""
    load: ModelLoad | None = None
    """How far the download of the model is, while that is not done."""
    key_blocked: bool = False
    """Engines ask gateways for a key once no gateway is left that shows none."""
    cache_kept: str | None = None
    """Why the claim of the model cache stays as it is though the spec says otherwise."""
    workload: WorkloadStatus | None = None
    """The traffic that engines measured, and a strategy that does better for it."""
    announcement: str | None = None
    """That strategy in words, once it was announced."""
