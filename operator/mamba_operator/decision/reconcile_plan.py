"""`ReconcilePlan`: every decision of one pass about one MambaDeployment. Pure data.

Returned by `plan`; carried out by `apply`; reported by `conditions.status` and `pass_events`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mamba_api.choices import Role
from mamba_api.v1alpha1 import CanaryStatus, MambaDeployment, ScalingStatus, WorkloadStatus
from mamba_operator.children.child_comparison import Apply, Delete
from mamba_operator.memory.verdict import MemoryVerdict
from mamba_operator.model.model_load import ModelLoad
from mamba_operator.objects.manifest import Ref
from mamba_operator.render.live_settings import RejectedUpdate, SettingsUpdate
from mamba_operator.rollout.adapter_outcome import AdapterUpdate
from mamba_operator.rollout.rollback import FailedRevision


@dataclass(frozen=True, slots=True)
class IndexTrouble:
    """Holds what a gateway reported about the Redis of the prefix index, which it cannot use."""

    message: str
    seconds_left: float
    """Seconds until the report is too old to count."""


@dataclass(frozen=True, slots=True)
class ReconcilePlan:
    """Changes that a pass has to make, and the decisions that led to them."""

    deployment: MambaDeployment | None = None
    """The parsed object, its profile filled in; None when it is gone, being deleted, or invalid."""
    verdict: MemoryVerdict | None = None
    """The planner's verdict; None when the object is gone or being deleted."""
    replicas: int | None = None
    """Desired number of engines; None when nothing may be changed."""
    applies: tuple[Apply, ...] = ()
    deletes: tuple[Delete, ...] = ()
    not_served: tuple[str, ...] = ()
    """Reasons why children that the spec requires cannot be created in this cluster."""
    terminating: tuple[Ref, ...] = ()
    """Children that are being deleted, and are created again once they are gone."""
    requeue_after: float | None = None
    """Seconds until the plan changes by time alone; None = it does not."""
    index_trouble: IndexTrouble | None = None
    """Trouble with the Redis of the prefix index that gateways report."""
    plan_difference: str | None = None
    """Message that a new revision would get another memory plan than the serving one; None = it would not."""
    settings_updates: tuple[SettingsUpdate, ...] = ()
    """Live settings to send to running engines."""
    rejected_updates: tuple[RejectedUpdate, ...] = ()
    """Updates of `settings_updates` that engines did not accept."""
    adapter_updates: tuple[AdapterUpdate, ...] = ()
    """Running engines that may not serve the adapters of the spec yet."""
    ready_revision: str | None = None
    """Label of the last revision of which all engine pods were ready."""
    failed: FailedRevision | None = None
    """The revision of the spec, if it failed and engines were rolled back; None = it did not."""
    canary: CanaryStatus | None = None
    """The canary under way; None = there is none."""
    scaling: ScalingStatus | None = None
    """Decision about the number of engines; None where spec.replicas is that number."""
    up_to_date: Mapping[str, str] = field(default_factory=dict)
    """Value of `Snapshot.up_to_date` for all children that match the object now."""
    in_place: bool = False
    """Whether an old engine is removed before a new one is created, because there is no room for both."""
    in_place_soon: bool = False
    """Whether an old engine will be removed first, once an added engine has waited for room for
    `inPlaceAfter`."""
    in_place_refused: bool = False
    """Whether an added engine has no room, and the spec does not allow to remove an older one first."""
    queued: bool = False
    """Whether a roll-out without an edit of the object waits until other roll-outs have ended."""
    begins_unasked: bool = False
    """Whether a roll-out begins although nobody has edited the object."""
    load: ModelLoad | None = None
    """Progress of the model's download; None once it is complete."""
    key_blocked: bool = False
    """Whether engines do not require the gateways' key yet, because a gateway that presents none is
    running."""
    cache_kept: str | None = None
    """Reason why the claim of the model cache stays as it is, although the spec differs; None = it
    matches."""
    workload: WorkloadStatus | None = None
    """Traffic that engines measured, with a strategy that is expected to perform better for it, if there is
    one."""
    announcement: str | None = None
    """Message about a better strategy; None = no strategy was announced."""
    pools: Mapping[Role, "ReconcilePlan"] = field(default_factory=dict)
    """Decisions about each pool, by role, where the engines are two pools. The decisions about the whole are
    fields of this object."""
    outgoing: tuple[Role, ...] = ()
    """Former roles whose engines run until the engines of the spec's roles serve."""

    @property
    def changes_something(self) -> bool:
        """Whether the pass has to write to the cluster or to call an engine."""
        return any(
            (self.settings_updates, self.adapter_updates, self.applies, self.deletes, self.terminating)
        )
