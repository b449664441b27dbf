"""`GatewayReconciler`: one pass over one MambaGateway: observe, plan, apply, write the status, record events.

The work queue calls it like the reconciler of MambaDeployments, with which it shares the client, the indices,
the comparison of children and the events. A pass in which the watches show nothing to do reads nothing.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import structlog

from mamba_api.v1alpha1.conditions import find_condition
from mamba_api.v1alpha1.gateway_status import GatewayConditionType, GatewayStatus
from mamba_operator.apply import AppliedChange, ApplyResult, apply, status_manifest
from mamba_operator.conditions.chain import Failure
from mamba_operator.gateway_observe import Observation, observe_gateway, observe_gateway_indices
from mamba_operator.objects.client import KubeClient
from mamba_operator.objects.errors import ClusterError, Conflict, NotFound, Terminating
from mamba_operator.objects.indices import Indices
from mamba_operator.objects.kinds import DEPLOYMENT
from mamba_operator.objects.manifest import Key
from mamba_operator.observation.snapshot import Snapshot
from mamba_operator.pass_events import EventContent, EventRecorder, child_events, pending_event
from mamba_operator.process.metrics import OperatorMetrics
from mamba_operator.reconcile import PassSettings, now_utc, run_pass
from mamba_operator.render.access import mounts_key
from mamba_operator.render.context import DefaultImages
from mamba_operator.shared_gateway.plan import GatewayPlan, plan_gateway
from mamba_operator.shared_gateway.status import recorded_gateway_status, summarize

log = structlog.get_logger(__name__)
ABSENT_KIND_SECONDS = 60.0
"""Seconds after which a pass looks again for a kind that the cluster lacks."""
ANNOUNCED = (
    GatewayConditionType.MODELS_RESOLVED,
    GatewayConditionType.DEGRADED,
    GatewayConditionType.READY,
)
"""Conditions whose change is an event."""


@dataclass(slots=True)
class _Memory:
    """Holds what the process remembers of one MambaGateway that no object of the cluster records."""

    stale: bool = False
    """Whether the indices may be out of date, so that the next pass must read everything from the cluster."""
    accepted: dict[str, str] = field(default_factory=dict)
    """Value of `Snapshot.accepted`."""
    up_to_date: dict[str, str] = field(default_factory=dict)
    """Value of `Snapshot.up_to_date`."""
    written_version: str | None = None
    """Version of the object for which the last status was written."""


class GatewayReconciler:
    """The part of the operator that runs the passes over all MambaGateways."""

    def __init__(
        self,
        client: KubeClient,
        metrics: OperatorMetrics,
        events: EventRecorder,
        indices: Indices,
        images: DefaultImages,
        settings: PassSettings,
        now: Callable[[], datetime] = now_utc,
    ) -> None:
        """Create the reconciler.

        Args:
            client: client of the API server.
            metrics: metrics of the operator.
            events: recorder of the events of passes.
            indices: objects as the operator's watches last saw them.
            images: images of pods whose spec names none.
            settings: limits of passes.
            now: clock with a time zone.
        """
        self._client, self._metrics, self._events = client, metrics, events
        self._indices, self._images = indices, images
        self._settings, self._now = settings, now
        self._memories: defaultdict[Key, _Memory] = defaultdict(_Memory)

    def mark_stale(self, key: Key) -> None:
        """Make the next pass of `key` read everything from the cluster, as the indices may be out of date."""
        self._memories[key].stale = True

    async def __call__(self, key: Key) -> float | None:
        """Run one pass. Return the seconds until the next one; None when the object is gone.

        Raises:
            OperatorError: a step failed; the other steps were carried out and the status has the failure.
            TimeoutError: the pass took too long.
        """
        return await run_pass(key, self._pass, self._settings, self._metrics)

    async def _pass(self, key: Key) -> float | None:
        memory = self._memories[key]
        if memory.stale:
            memory.stale = False
        elif (seconds := await self._pass_from_indices(key)) is not None:
            return seconds
        observation = await observe_gateway(self._client, key)
        if observation.snapshot.owner is None:
            del self._memories[key]
            return None
        snapshot, plan = self._planned(observation)
        outcome = await apply(self._client, snapshot, plan.changes, self._indices.add_created)
        memory.accepted |= outcome.accepted
        memory.up_to_date = {**plan.changes.up_to_date, **outcome.up_to_date}
        for item in outcome.applied:
            self._metrics.changes.labels(item.ref.kind, item.change.value).inc()
            log.info(
                "child_changed", key=str(key), child=str(item.ref), change=item.change, detail=item.detail
            )
        await self._report(snapshot, plan, outcome)
        if outcome.errors:
            raise next((one for one in outcome.errors if isinstance(one, ClusterError)), outcome.errors[0])
        return self._requeue_after(plan)

    def _planned(self, observation: Observation) -> tuple[Snapshot, GatewayPlan]:
        memory = self._memories[observation.snapshot.key]
        snapshot = replace(observation.snapshot, accepted=memory.accepted, up_to_date=dict(memory.up_to_date))

        def presents_key(name: str) -> bool:
            gateways = self._indices.of(DEPLOYMENT, Key(snapshot.key.namespace, name))
            return any(
                one["metadata"]["name"] == name and mounts_key((one.get("spec") or {}).get("template"))
                for one in gateways
            )

        plan = plan_gateway(snapshot, observation.deployments, images=self._images, presents_key=presents_key)
        return snapshot, plan

    async def _pass_from_indices(self, key: Key) -> float | None:
        """Run a pass over the indices alone; return the seconds until the next pass.

        The result is None if a pass over the cluster is needed: the object is not in the indices or was
        edited, a child has to be changed, or the status could not be written. An HTTPRoute is not watched, so
        a gateway that has one is read from the cluster, too.
        """
        observation = observe_gateway_indices(self._indices, key)
        owner = observation.snapshot.owner if observation is not None else None
        if observation is None or owner is None:
            return None
        snapshot, plan = self._planned(observation)
        edited = recorded_gateway_status(owner).observed_generation != owner["metadata"].get("generation")
        routed = plan.gateway is not None and plan.gateway.spec.http_route is not None
        changes = plan.changes
        if edited or routed or changes.applies or changes.deletes or changes.terminating:
            return None
        self._memories[key].up_to_date = dict(changes.up_to_date)
        if self._memories[key].written_version != owner["metadata"]["resourceVersion"]:
            try:
                await self._report(snapshot, plan, ApplyResult())
            except Conflict:
                return None
        return self._requeue_after(plan)

    def _requeue_after(self, plan: GatewayPlan) -> float:
        return min(self._settings.resync(), ABSENT_KIND_SECONDS if plan.changes.not_served else float("inf"))

    async def _report(self, snapshot: Snapshot, plan: GatewayPlan, outcome: ApplyResult) -> None:
        """Write the status, unless it is unchanged, and record the events of the pass."""
        owner = snapshot.owner
        if owner is None or (plan.gateway is None and not plan.failures):
            return
        failures = [
            *plan.failures,
            *(
                Failure(error.condition_reason, str(error))
                for error in outcome.errors
                # Waiting until a name is free, or for another writer, is normal and needs no action.
                if not isinstance(error, Terminating | Conflict)
            ),
        ]
        old = recorded_gateway_status(owner)
        new = summarize(snapshot, plan.resolution, failures, plan.changes.not_served, now=self._now())
        if new != old or not owner.get("status"):
            try:
                await self._client.apply(status_manifest(owner, new.manifest()), subresource="status")
            except NotFound:
                return
            self._memories[snapshot.key].written_version = owner["metadata"]["resourceVersion"]
        for content in _events(old, new, outcome.applied):
            self._events.record(pending_event(owner, content, self._now()))


def _events(old: GatewayStatus, new: GatewayStatus, applied: Sequence[AppliedChange]) -> list[EventContent]:
    """Return the events of one pass: about children, and about conditions whose reason changed."""
    events = child_events(applied)
    for type_ in ANNOUNCED:
        before, after = find_condition(old.conditions, type_), find_condition(new.conditions, type_)
        if after is None or (before is not None and before.reason == after.reason):
            continue
        bad = after.status == ("True" if type_ is GatewayConditionType.DEGRADED else "False")
        if before is None and not (bad and type_ is GatewayConditionType.MODELS_RESOLVED):
            continue
        message = f"{type_} became {after.status}: {after.message}"
        events.append(EventContent("Warning" if bad else "Normal", after.reason, message))
    return events
