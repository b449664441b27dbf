"""`Reconciler`: one pass over one MambaDeployment: observe, plan, apply, write the status, record events.

A pass is level-based: it gets the key of the object, and does not use the event that caused it. The work
queue calls it, and never runs two passes of the same key at the same time. A pass that raises an error is
repeated later.
"""

import asyncio
import secrets
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import structlog
from pydantic import ValidationError

from mamba_api import names
from mamba_api.bounded_text import bounded
from mamba_api.v1alpha1 import Status
from mamba_api.v1alpha1.conditions import Reason
from mamba_operator.apply import AppliedChange, ApplyResult, apply, status_manifest
from mamba_operator.children.adapter_updates import AdapterUpdates
from mamba_operator.children.engine_admin import EngineAccess, send_updates
from mamba_operator.conditions.chain import Failure
from mamba_operator.conditions.status import summarize, unobserved
from mamba_operator.decision.reconcile_plan import ReconcilePlan
from mamba_operator.deletion_cost import mark_pods, scale_downs
from mamba_operator.memory.verdict import depends_on_nodes
from mamba_operator.model.model_cache import is_cache_shared
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
from mamba_operator.objects.kinds import BY_NAME, CLAIM, MAMBA_DEPLOYMENT, Kind
from mamba_operator.objects.manifest import Key, Manifest, is_terminating
from mamba_operator.objects.recorded_status import recorded_status
from mamba_operator.observation.node_reader import NodeReader
from mamba_operator.observation.snapshot import (
    Snapshot,
    Sources,
)
from mamba_operator.observe import observe, observe_indices
from mamba_operator.pass_events import (
    MAX_PASS_MESSAGE,
    EventContent,
    EventRecorder,
    pass_events,
    pending_event,
)
from mamba_operator.plan import make_plan
from mamba_operator.process.metrics import OperatorMetrics
from mamba_operator.render.context import ChildDefaults
from mamba_operator.render.live_settings import run_of
from mamba_operator.rollout.adapter_outcome import AdapterOutcome
from mamba_operator.rollout.rollback import EngineHistory
from mamba_operator.rollout.turns import RolloutTurns

log = structlog.get_logger(__name__)
TOKEN_BYTES = 32
AFTER_ADAPTERS = 0.5
"""Seconds until the next pass after an engine has answered about its adapters."""


def now_utc() -> datetime:
    """Return the current time."""
    return datetime.now(UTC)


def new_token() -> str:
    """Create a random secret for an admin port."""
    return secrets.token_urlsafe(TOKEN_BYTES)


@dataclass(frozen=True, slots=True)
class PassSettings:
    """The limits of passes, and the name of the operator in events."""

    identity: str
    """Name of this operator in events."""
    timeout: float = 120.0
    """Seconds that one pass may take."""
    resync: Callable[[], float] = lambda: 300.0
    """Returns the longest time, in seconds, until the next pass over an object."""
    max_rollouts: int = 3
    """Number of roll-outs that may run at the same time although nobody has edited their objects."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """The clock, the randomness and the callbacks that passes use."""

    now: Callable[[], datetime] = now_utc
    new_token: Callable[[], str] = new_token
    """Creates a random admin token, for an operator without a key to derive tokens from."""
    busy: Callable[[], bool] = lambda: False
    """Returns whether passes are due. Events wait while some are, but not for long."""
    on_listed: Callable[[Kind, Manifest, float], None] | None = None
    """Called with every listed object and the time of the request on the monotonic clock, in seconds."""


@dataclass(slots=True)
class ObjectMemory:
    """Holds what the process remembers of one MambaDeployment that no object of the cluster records."""

    listed: bool = False
    """Whether this process has listed, or created, the object's children."""
    stale: bool = False
    """Whether the indices may be out of date, so that the next pass must read everything from the cluster."""
    accepted: dict[str, str] = field(default_factory=dict)
    """Value of `Snapshot.accepted`."""
    up_to_date: Mapping[str, str] = field(default_factory=dict)
    """Value of `Snapshot.up_to_date`."""
    sent_settings: dict[str, str] = field(default_factory=dict)
    """Value of `Snapshot.sent_settings`."""
    adapter_updates: AdapterUpdates | None = None
    """Attempts to give engines other adapters, and their outcomes; None = there are none."""
    engine_history: EngineHistory = field(default_factory=EngineHistory)
    """Times since which engines have been failing, or have not changed."""
    written_version: str | None = None
    """Version of the object for which the last status was written."""
    refused_version: str | None = None
    """Version of the object for which the API server refused the status."""


async def run_pass(
    key: Key,
    one_pass: Callable[[Key], Awaitable[float | None]],
    settings: PassSettings,
    metrics: OperatorMetrics,
) -> float | None:
    """Run a pass within its time limit, log its failure, count it, and return the result of `one_pass`.

    Raises:
        OperatorError: a step failed; the other steps were carried out and the status has the failure.
        TimeoutError: the pass took too long.
    """
    started = time.monotonic()
    result = "error"
    try:
        async with asyncio.timeout(settings.timeout):
            requeue_after = await one_pass(key)
        result = "done" if requeue_after is not None else "gone"
        return requeue_after
    except (OperatorError, TimeoutError) as error:
        log.warning("reconcile_failed", key=str(key), error=str(error) or "the pass took too long")
        raise
    except Exception:
        log.exception("reconcile_crashed", key=str(key))
        raise
    finally:
        metrics.reconciles.labels(result).inc()
        metrics.seconds.observe(time.monotonic() - started)


class Reconciler:
    """The part of the operator that runs the passes over all MambaDeployments.

    It holds what passes share, and remembers facts about each object between its passes. The coroutine
    `events.run()` writes the events of the passes, and must run in a task of its own.

    Args:
        client: client of the API server.
        metrics: metrics of the operator.
        settings: limits of passes.
        indices: objects of each deployment, as the operator's watches last saw them; None = passes read
            everything from the cluster.
        defaults: values for children whose MambaDeployment names none.
        engines: means to reach running engines.
        sources: facts about an object that other parts of the process know.
        runtime: clock, randomness and callbacks.
    """

    def __init__(
        self,
        client: KubeClient,
        metrics: OperatorMetrics,
        settings: PassSettings,
        *,
        indices: Indices | None = None,
        defaults: ChildDefaults | None = None,
        engines: EngineAccess | None = None,
        sources: Sources | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self._client, self._metrics, self._settings = client, metrics, settings
        self._indices = indices or Indices()
        self._defaults = defaults or ChildDefaults()
        self._engines = engines or EngineAccess()
        self._sources = sources or Sources()
        self._runtime = runtime or Runtime()
        self._now = self._runtime.now
        self.events = EventRecorder(client, reporter=settings.identity, busy=self._runtime.busy)
        self._turns = RolloutTurns(self._indices, settings.max_rollouts, self._now)
        self._nodes = NodeReader(client)
        self._memories: defaultdict[Key, ObjectMemory] = defaultdict(ObjectMemory)

    def mark_stale(self, key: Key) -> None:
        """Make the next pass of `key` read everything from the cluster, as the indices may be out of date."""
        self._memories[key].stale = True

    def record_skipped(self, key: Key, reason: str, message: str) -> None:
        """Record an event about an object that another release reconciles; its status is not written here."""
        for owner in self._indices.of(BY_NAME[key.kind], key):
            self._record(owner, EventContent("Warning", reason, message))

    async def __call__(self, key: Key) -> float | None:
        """Run one pass. Return the seconds until the next one; None when the object is gone.

        Raises:
            OperatorError: a step failed; the other steps were carried out and the status has the failure.
            TimeoutError: the pass took too long.
        """
        return await run_pass(key, self._pass, self._settings, self._metrics)

    async def _pass(self, key: Key) -> float | None:
        memory = self._memories[key]
        # An object whose children this process has never seen, and of which the watches hold none, is new.
        new = None if memory.stale or memory.listed else self._indices.childless(key)
        if memory.stale:
            memory.stale = False
        elif new is None and (requeue_after := await self._pass_from_indices(key)) is not None:
            return requeue_after
        snapshot = await self._observe(key, new)
        if snapshot.owner is None:
            self._forget(key)
            return None
        snapshot = self._with_process_state(snapshot)
        plan = self._plan(snapshot)
        if self._engines.read is not None:
            for decrease in scale_downs(snapshot, plan):
                await mark_pods(self._client, decrease, self._engines.read)
        outcome = await apply(self._client, snapshot, plan, self._indices.add_created)
        memory.accepted |= outcome.accepted
        memory.up_to_date = {**plan.up_to_date, **outcome.up_to_date}
        self._count_changes(key, outcome.applied)
        plan = await self._send_updates(key, plan)
        snapshot, plan = await self._give_adapters(snapshot, plan)
        await self._report(snapshot, plan, outcome)
        if outcome.errors:
            raise _worst_error(outcome.errors)
        return self._requeue_after(plan)

    async def _observe(self, key: Key, new: Manifest | None) -> Snapshot:
        """Read the object and its children from the cluster. `new` is an object without children."""
        requested_at = time.monotonic()
        on_listed = self._runtime.on_listed
        try:
            snapshot = await observe(
                self._client,
                key,
                nodes=self._nodes,
                shipped=self._sources.shipped,
                on_listed=None
                if on_listed is None
                else lambda kind, item: on_listed(kind, item, requested_at),
                new=new,
            )
        except Forbidden as error:
            # A missing right does not come back by itself, and users read the object rather than our log.
            await self._report_forbidden(key, error)
            raise
        self._memories[key].listed = True
        return snapshot

    def _forget(self, key: Key) -> None:
        """Drop the memory of a deleted object, but keep the mark that its indices may be out of date."""
        memory = self._memories.pop(key)
        if memory.adapter_updates is not None:
            memory.adapter_updates.keep(())
        if memory.stale:
            self.mark_stale(key)

    def _with_process_state(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot, completed by the facts that this process knows about the object."""
        key, sources = snapshot.key, self._sources
        memory = self._memories[key]
        return replace(
            snapshot,
            accepted=memory.accepted,
            up_to_date=memory.up_to_date,
            sent_settings=memory.sent_settings,
            adapter_outcomes=_adapter_outcomes(memory),
            latest_decision=(decisions := sources.latest_decisions(key)).get("unified"),
            decisions_by_role=decisions,
            attempts=sources.attempts(key),
            canary=sources.canary(key),
            engine_times=memory.engine_history.observe(snapshot.pods, self._now()),
            # Without a volume there is nothing to share, and the search reads all objects of the namespace.
            cache_shared=snapshot.child(CLAIM.kind, snapshot.names.model_cache) is not None
            and is_cache_shared(self._indices, key),
            may_begin=self._turns.may_begin(key),
            downloads=sources.downloads(key),
            reported=(reports := sources.reported(key)).get("unified"),
            reported_by_role=reports,
            measured=(measured := sources.measured(key)).get("unified"),
            measured_by_role=measured,
        )

    def _plan(self, snapshot: Snapshot) -> ReconcilePlan:
        key, uid, defaults = self._engines.key, snapshot.uid, self._defaults
        plan = make_plan(
            snapshot,
            now=self._now(),
            new_token=self._runtime.new_token if key is None else lambda: key.token(uid),
            key_id=key.id if key else "",
            images=defaults.images,
            scrapers=defaults.scrapers,
            operator=defaults.operator,
            profiles=defaults.profiles,
        )
        self._memories[snapshot.key].up_to_date = plan.up_to_date
        if plan.begins_unasked:
            self._turns.begin(snapshot.key)
        return plan

    def _count_changes(self, key: Key, applied: Sequence[AppliedChange]) -> None:
        for item in applied:
            self._metrics.changes.labels(item.ref.kind, item.change.value).inc()
            log.info(
                "child_changed", key=str(key), child=str(item.ref), change=item.change, detail=item.detail
            )

    async def _send_updates(self, key: Key, plan: ReconcilePlan) -> ReconcilePlan:
        """Send pending live settings to engines. Return the plan with the rejected updates only."""
        admin_key = self._engines.key
        if admin_key is None or not plan.settings_updates or plan.deployment is None:
            return plan
        token = admin_key.token(plan.deployment.metadata.uid or "")
        rejections = await send_updates(plan.settings_updates, token, self._engines.put)
        rejected = tuple(rejection.update for rejection in rejections)
        self._memories[key].sent_settings |= {
            update.run: update.settings for update in plan.settings_updates if update not in rejected
        }
        for rejection in rejections:
            log.warning("live_settings_rejected", key=str(key), error=rejection.message)
        return replace(plan, settings_updates=rejected, rejected_updates=rejections)

    async def _give_adapters(self, snapshot: Snapshot, plan: ReconcilePlan) -> tuple[Snapshot, ReconcilePlan]:
        """Let engines load and unload adapters. Return the snapshot with the outcomes, and the plan."""
        memory, admin_key = self._memories[snapshot.key], self._engines.key
        updates = memory.adapter_updates
        if updates is not None and not updates.keep([run_of(pod) for pod in snapshot.pods]):
            updates = memory.adapter_updates = None
        if admin_key is None or not plan.adapter_updates:
            return snapshot, plan
        if updates is None:
            updates = memory.adapter_updates = AdapterUpdates(self._engines.call)
        if await updates.advance(plan.adapter_updates, admin_key.token(snapshot.uid)):
            # The next pass writes what has become true: new engines start with these adapters, too.
            plan = replace(plan, requeue_after=AFTER_ADAPTERS)
        return replace(snapshot, adapter_outcomes=updates.outcomes()), plan

    def _requeue_after(self, plan: ReconcilePlan) -> float:
        return min(self._settings.resync(), plan.requeue_after or float("inf"))

    async def _pass_from_indices(self, key: Key) -> float | None:
        """Run a pass over the indices alone; return the seconds until the next pass.

        The result is None if a pass over the cluster is needed: the object is not in the indices, the list of
        nodes is old, a child has to be changed, or the status could not be written. The pass may write the
        status, but for the indexed version of the object only. Where the indices lag behind the cluster, an
        event is on its way and causes another pass.
        """
        snapshot = observe_indices(self._indices, key, self._nodes.nodes, shipped=self._sources.shipped)
        if snapshot is None or snapshot.owner is None:
            return None
        plan = self._plan(self._with_process_state(snapshot))
        deployments = [part.deployment for part in (plan, *plan.pools.values())]
        depends = any(part is not None and depends_on_nodes(part) for part in deployments)
        old_nodes = depends and self._nodes.is_old
        if old_nodes or plan.changes_something:
            return None
        status = summarize(snapshot, plan, (), now=self._now())
        # No second status is written for one version of the object; the watch will deliver the next version.
        version = snapshot.owner["metadata"]["resourceVersion"]
        was_written = self._memories[key].written_version == version
        if status is not None and not was_written and status != _exact_status(snapshot.owner):
            try:
                await self._write(snapshot.owner, recorded_status(snapshot.owner), status, ())
            except Conflict:
                return None
        return self._requeue_after(plan)

    async def _report(self, snapshot: Snapshot, plan: ReconcilePlan, outcome: ApplyResult) -> None:
        """Write the status, unless it is unchanged, and record the events of the pass."""
        assert snapshot.owner is not None
        old = recorded_status(snapshot.owner)
        failures = [
            Failure(error.condition_reason, str(error))
            for error in outcome.errors
            # Waiting until a name is free, or for another writer, is normal and needs no action.
            if not isinstance(error, Terminating | Conflict)
        ]
        new = summarize(snapshot, plan, failures, now=self._now())
        await self._write(snapshot.owner, old, new, outcome.applied)

    async def _report_forbidden(self, key: Key, error: Forbidden) -> None:
        """Write the missing right into the status, if the object can be read and written."""
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
                # The object was deleted since it was observed, so it needs no status and no events.
                return
            except ObjectRejected as error:
                self._record_refusal(owner, error)
                raise
            self._memory_of(owner).written_version = owner["metadata"]["resourceVersion"]
        for content in pass_events(old, new, applied):
            self._record(owner, content)

    def _record(self, owner: Manifest, content: EventContent) -> None:
        self.events.record(pending_event(owner, content, self._now()))

    def _memory_of(self, owner: Manifest) -> ObjectMemory:
        return self._memories[Key(owner["metadata"]["namespace"], owner["metadata"]["name"])]

    def _record_refusal(self, owner: Manifest, error: ObjectRejected) -> None:
        """Record an event that the API server refused the status, once for each version of the object.

        No status can be written for an object that an earlier CRD accepted and the present one rejects, but
        an event can.
        """
        memory, version = self._memory_of(owner), owner["metadata"]["resourceVersion"]
        if memory.refused_version != version:
            memory.refused_version = version
            text = f"The API server refused the status, and will refuse most edits: {error}"
            message = bounded(text, MAX_PASS_MESSAGE)
            self._record(owner, EventContent("Warning", Reason.INVALID_SPEC, message))


def _adapter_outcomes(memory: ObjectMemory) -> Mapping[str, AdapterOutcome]:
    return memory.adapter_updates.outcomes() if memory.adapter_updates is not None else {}


def _exact_status(owner: Manifest) -> Status | None:
    """Return the recorded status; None if a part of it is invalid, so that it must be written again."""
    try:
        return Status.model_validate(owner.get("status"), by_alias=True, by_name=False)
    except ValidationError:
        return None


def _worst_error(errors: list[OperatorError]) -> OperatorError:
    """Return the error that decides when the pass is repeated: the last ClusterError, or else the first."""
    return next((error for error in reversed(errors) if isinstance(error, ClusterError)), errors[0])
