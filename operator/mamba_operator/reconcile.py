"""`Reconciler`: one pass over one MambaDeployment: observe, plan, apply, one status write; events follow.

Level-based: it is told a key and nothing of the event that woke it. Called by the work queue, which never
runs two passes of a key at the same time; raising means "again, later".
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import structlog
from pydantic import ValidationError

from mamba_api import names
from mamba_api.bounded_text import bounded
from mamba_api.v1alpha1 import Status
from mamba_api.v1alpha1.conditions import Reason
from mamba_api.v1alpha1.profiles import Profiles
from mamba_operator.apply import AppliedChange, ApplyResult, apply, status_manifest
from mamba_operator.autoscale.metrics_reader import ReadMetrics
from mamba_operator.autoscale.scaling_record import LatestDecision
from mamba_operator.children.admin_key import AdminKey
from mamba_operator.children.engine_admin import Put, put_strategy, send_updates
from mamba_operator.conditions.chain import Failure
from mamba_operator.conditions.status import summarize, unobserved
from mamba_operator.decision.reconcile_plan import ReconcilePlan
from mamba_operator.deletion_cost import mark_pods, scale_down
from mamba_operator.event_recorder import EventRecorder, pending_event
from mamba_operator.memory.planning import depends_on_nodes
from mamba_operator.model.copies_in_use import is_cache_shared
from mamba_operator.objects.client import KubeClient
from mamba_operator.objects.errors import (
    ClusterError,
    Conflict,
    Forbidden,
    NotFound,
    ObjectRejected,
    OperatorError,
    Terminating,
)
from mamba_operator.objects.indices import Indices
from mamba_operator.objects.kinds import MAMBA_DEPLOYMENT, Kind
from mamba_operator.objects.manifest import Key, Manifest, is_terminating
from mamba_operator.objects.recorded_status import recorded_status
from mamba_operator.observation.builtin_config import ShippedConfig, nothing_shipped
from mamba_operator.observation.node_reader import NodeReader
from mamba_operator.observation.snapshot import DownloadProgress, ReportedPlan, Snapshot
from mamba_operator.observe import observe, observe_indices
from mamba_operator.pass_events import MAX_MESSAGE, EventContent, pass_events
from mamba_operator.plan import make_plan
from mamba_operator.process.metrics import OperatorMetrics
from mamba_operator.render.default_images import OF_THIS_VERSION, DefaultImages
from mamba_operator.render.scrapers import OPERATOR, PROMETHEUS, Scraper
from mamba_operator.rollout.attempts import Attempts
from mamba_operator.rollout.engine_history import EngineHistory
from mamba_operator.rollout.turns import RolloutTurns
from mamba_operator.workload.measured_workload import MeasuredWorkload
from mamba_planner.shipped_profiles import SHIPPED

log = structlog.get_logger(__name__)
TOKEN_BYTES = 32


def now_utc() -> datetime:
    """The time."""
    return datetime.now(UTC)


def new_token() -> str:
    """A fresh secret for an admin port."""
    return secrets.token_urlsafe(TOKEN_BYTES)


class Reconciler:
    """Holds what passes share: the client, the clock, the instruments. `events` has to run beside it."""

    def __init__(
        self,
        client: KubeClient,
        metrics: OperatorMetrics,
        *,
        identity: str,
        timeout: float = 120.0,
        resync: Callable[[], float] = lambda: 300.0,
        on_listed: Callable[[Kind, Manifest, float], None] | None = None,
        now: Callable[[], datetime] = now_utc,
        token: Callable[[], str] = new_token,
        shipped: ShippedConfig = nothing_shipped,
        indices: Indices | None = None,
        images: DefaultImages = OF_THIS_VERSION,
        scrapers: tuple[Scraper, ...] = PROMETHEUS,
        operator: Scraper = OPERATOR,
        profiles: Profiles = SHIPPED,
        key: AdminKey | None = None,
        put: Put = put_strategy,
        latest_decision: Callable[[Key], LatestDecision | None] = lambda _: None,
        attempts: Callable[[Key], Mapping[str, Attempts]] = lambda _: {},
        downloads: Callable[[Key], Mapping[str, DownloadProgress]] = lambda _: {},
        reported: Callable[[Key], ReportedPlan | None] = lambda _: None,
        measured: Callable[[Key], MeasuredWorkload | None] = lambda _: None,
        read: ReadMetrics | None = None,
        busy: Callable[[], bool] = lambda: False,
        most_rollouts: int = 3,
    ) -> None:
        self._client = client
        self.events = EventRecorder(client, reporter=identity, busy=busy)
        self._metrics = metrics
        self._timeout = timeout
        self._resync = resync
        self._on_listed = on_listed
        self._now = now
        self._token = token
        self._shipped = shipped
        self._images, self._scrapers, self._operator = images, scrapers, operator
        self._profiles = profiles
        self._indices = indices or Indices()
        self._key, self._put, self._read = key, put, read
        self._latest_decision, self._attempts, self._downloads = latest_decision, attempts, downloads
        self._reported, self._measured = reported, measured
        self._sent_settings: dict[Key, dict[str, str]] = {}
        self._turns = RolloutTurns(self._indices, most_rollouts, now)
        self._engine_history: dict[Key, EngineHistory] = {}
        self._nodes = NodeReader(client)
        self._stale: set[Key] = set()
        self._accepted: dict[Key, dict[str, str]] = {}
        self._up_to_date: dict[Key, Mapping[str, str]] = {}
        self._listed: set[Key] = set()
        """Keys whose children this process has listed, or created."""
        self._written: dict[Key, str] = {}
        """Version of each object that the last status was written upon."""
        self._refused: dict[Key, str] = {}
        """Version of each object upon which the API server let no status be written."""

    def mark_stale(self, key: Key) -> None:
        """The indices of `key` may be out of date: its next pass reads everything from the cluster."""
        self._stale.add(key)

    def record_skipped(self, key: Key, reason: str, message: str) -> None:
        """Record an event on an object that is not reconciled here; its status may be another release's."""
        for owner in self._indices.of(MAMBA_DEPLOYMENT, key):
            self.events.record(pending_event(owner, EventContent("Warning", reason, message), self._now()))

    async def __call__(self, key: Key) -> float | None:
        """One pass. Returns seconds until the next one; None when the object is gone.

        Raises:
            OperatorError: something failed; what could be done was done and the status says so.
            TimeoutError: the pass took too long.
        """
        started = time.monotonic()
        result = "error"
        try:
            async with asyncio.timeout(self._timeout):
                requeue_after = await self._pass(key)
            result = "done" if requeue_after is not None else "gone"
            return requeue_after
        except (OperatorError, TimeoutError) as error:
            log.warning("reconcile_failed", key=str(key), error=str(error) or "the pass took too long")
            raise
        except Exception:
            log.exception("reconcile_broken", key=str(key))
            raise
        finally:
            self._metrics.reconciles.labels(result).inc()
            self._metrics.seconds.observe(time.monotonic() - started)

    async def _pass(self, key: Key) -> float | None:
        new: Manifest | None = None
        if key in self._stale:
            self._stale.discard(key)
        elif key not in self._listed and (new := self._indices.childless(key)) is not None:
            pass
        elif (requeue_after := await self._pass_from_indices(key)) is not None:
            return requeue_after
        requested_at = time.monotonic()
        on_listed = self._on_listed
        try:
            snapshot = await observe(
                self._client,
                key,
                nodes=self._nodes,
                shipped=self._shipped,
                on_listed=None if on_listed is None else lambda kind, one: on_listed(kind, one, requested_at),
                new=new,
            )
            self._listed.add(key)
        except Forbidden as error:
            # It will not pass by itself, and whoever looks at the object should not have to find our log.
            await self._report_forbidden(key, error)
            raise
        if snapshot.owner is None:
            for memory in (
                self._accepted,
                self._up_to_date,
                self._sent_settings,
                self._engine_history,
                self._written,
                self._refused,
            ):
                memory.pop(key, None)
            self._listed.discard(key)
            return None
        accepted = self._accepted.setdefault(key, {})
        snapshot = self._with_process_state(snapshot)
        plan = self._plan(snapshot)
        if self._read is not None and (fewer := scale_down(snapshot, plan)) is not None:
            await mark_pods(self._client, fewer, self._read)
        outcome = await apply(self._client, snapshot, plan, self._indices.add_created)
        accepted |= outcome.accepted
        self._up_to_date[key] = {**plan.up_to_date, **outcome.up_to_date}
        for one in outcome.applied:
            self._metrics.changes.labels(one.ref.kind, one.change.value).inc()
            log.info("child_changed", key=str(key), child=str(one.ref), change=one.change, detail=one.detail)
        plan = await self._send_updates(key, plan)
        await self._report(snapshot, plan, outcome)
        if outcome.errors:
            raise _worst_error(outcome.errors)
        return min(self._resync(), plan.requeue_after or float("inf"))

    def _with_process_state(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the state that this process keeps of the object between passes."""
        key = snapshot.key
        return replace(
            snapshot,
            accepted=self._accepted.get(key, {}),
            up_to_date=self._up_to_date.get(key, {}),
            sent_settings=self._sent_settings.get(key, {}),
            latest_decision=self._latest_decision(key),
            attempts=self._attempts(key),
            engine_times=self._engine_history.setdefault(key, EngineHistory()).observe(
                snapshot.pods, self._now()
            ),
            cache_shared=is_cache_shared(self._indices, key),
            may_begin=self._turns.may_begin(key),
            downloads=self._downloads(key),
            reported=self._reported(key),
            measured=self._measured(key),
        )

    def _plan(self, snapshot: Snapshot) -> ReconcilePlan:
        key, uid = self._key, snapshot.uid
        token = self._token if key is None else lambda: key.token(uid)
        plan = make_plan(
            snapshot,
            now=self._now(),
            new_token=token,
            key_id=key.id if key else "",
            images=self._images,
            scrapers=self._scrapers,
            operator=self._operator,
            profiles=self._profiles,
        )
        self._up_to_date[snapshot.key] = plan.up_to_date
        if plan.begins_unasked:
            self._turns.begin(snapshot.key)
        return plan

    async def _send_updates(self, key: Key, plan: ReconcilePlan) -> ReconcilePlan:
        """Send pending live settings to the engines. Returns the plan with only the updates that were
        rejected."""
        if self._key is None or not plan.settings_updates or plan.deployment is None:
            return plan
        rejected_updates = await send_updates(
            plan.settings_updates, self._key.token(plan.deployment.metadata.uid or ""), self._put
        )
        rejected = tuple(one.update for one in rejected_updates)
        sent = self._sent_settings.setdefault(key, {})
        sent |= {one.run: one.settings for one in plan.settings_updates if one not in rejected}
        for one in rejected_updates:
            log.warning("engine_not_told", key=str(key), said=one.message)
        return replace(plan, settings_updates=rejected, rejected_updates=rejected_updates)

    async def _pass_from_indices(self, key: Key) -> float | None:
        """A pass over the indices alone: seconds until the next pass if no child has to change; None = a pass
        over the cluster is needed. It may write the status, for the indexed version of the object only.

        Where the indices lag behind, an event is on its way and wakes the key once more.
        """
        snapshot = observe_indices(self._indices, key, self._nodes.nodes, shipped=self._shipped)
        if snapshot is None or snapshot.owner is None:
            return None
        plan = self._plan(self._with_process_state(snapshot))
        old_nodes = plan.deployment is not None and depends_on_nodes(plan.deployment) and self._nodes.is_old
        if old_nodes or plan.settings_updates or plan.applies or plan.deletes or plan.terminating:
            return None
        status = summarize(snapshot, plan, (), now=self._now())
        # Upon a version that one was written upon none is written again: the watch has yet to hand that over.
        known = self._written.get(key) == snapshot.owner["metadata"]["resourceVersion"]
        if status is not None and not known and status != _exact_status(snapshot.owner):
            try:
                await self._write(snapshot.owner, recorded_status(snapshot.owner), status, ())
            except Conflict:
                return None
        return min(self._resync(), plan.requeue_after or float("inf"))

    async def _report(self, snapshot: Snapshot, plan: ReconcilePlan, outcome: ApplyResult) -> None:
        """Write the status, unless it is unchanged, and record the events of the pass."""
        assert snapshot.owner is not None
        old = recorded_status(snapshot.owner)
        failures = [
            Failure(error.condition_reason, str(error))
            for error in outcome.errors
            # Waiting for a name to be free, or for another's write, is normal and passes by itself.
            if not isinstance(error, Terminating | Conflict)
        ]
        new = summarize(snapshot, plan, failures, now=self._now())
        await self._write(snapshot.owner, old, new, outcome.applied)

    async def _report_forbidden(self, key: Key, error: Forbidden) -> None:
        try:
            owner = await self._client.get(MAMBA_DEPLOYMENT, key.namespace, key.name)
            if owner is not None and not is_terminating(owner):
                owner = {**owner, "apiVersion": names.API_VERSION, "kind": names.KIND}
                failure = Failure(error.condition_reason, str(error))
                await self._write(
                    owner, recorded_status(owner), unobserved(owner, failure, now=self._now()), ()
                )
        except ClusterError as second:
            log.warning("status_not_written", key=str(key), error=str(second))

    async def _write(
        self, owner: Manifest, old: Status, new: Status | None, applied: Sequence[AppliedChange]
    ) -> None:
        if new is not None and new != _exact_status(owner):
            try:
                await self._client.apply(status_manifest(owner, new.manifest()), subresource="status")
            except NotFound:
                # Deleted since we looked: there is nobody left to tell.
                return
            except ObjectRejected as error:
                self._record_refusal(owner, error)
                raise
            meta = owner["metadata"]
            self._written[Key(meta["namespace"], meta["name"])] = meta["resourceVersion"]
        for announcement in pass_events(old, new, applied):
            self.events.record(pending_event(owner, announcement, self._now()))

    def _record_refusal(self, owner: Manifest, error: ObjectRejected) -> None:
        """Record an event that the API server refused the status: once for each version of the object.

        An object that an earlier CRD accepted and the present one rejects cannot be written, but an event
        can.
        """
        meta = owner["metadata"]
        key, version = Key(meta["namespace"], meta["name"]), meta["resourceVersion"]
        if self._refused.get(key) != version:
            self._refused[key] = version
            message = bounded(
                f"The API server refused the status, as it would most edits: {error}", MAX_MESSAGE
            )
            self.events.record(
                pending_event(owner, EventContent("Warning", Reason.INVALID_SPEC, message), self._now())
            )


def _exact_status(owner: Manifest) -> Status | None:
    """The recorded status; None when something in it cannot be read, so that it is written anew."""
    try:
        return Status.model_validate(owner.get("status"), by_alias=True, by_name=False)
    except ValidationError:
        return None


def _worst_error(errors: list[OperatorError]) -> OperatorError:
    """The error that decides on the back-off: the last one of the API server, else the first."""
    return next((error for error in reversed(errors) if isinstance(error, ClusterError)), errors[0])
