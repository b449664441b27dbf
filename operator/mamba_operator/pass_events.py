"""The Kubernetes events of a pass, about changes of children and of conditions, and `EventRecorder`.

`pass_events` is pure; the event about a condition has the reason of the condition. `EventRecorder` writes
events about MambaDeployments and MambaGateways, and counts their repetitions. The name of an event ends with
a hash of its content, so that a restarted operator finds the event again. An event that cannot be written is
logged and has no other effect.
"""

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import structlog

from mamba_api import names
from mamba_api.bounded_text import bounded
from mamba_api.v1alpha1 import Condition, Status
from mamba_api.v1alpha1.conditions import ConditionType, find_condition, timestamp
from mamba_operator.apply import AppliedChange
from mamba_operator.children.child_comparison import Change
from mamba_operator.objects.client import KubeClient
from mamba_operator.objects.errors import ClusterError, Conflict
from mamba_operator.objects.kinds import EVENT
from mamba_operator.objects.manifest import Manifest, digest

TROUBLE = {ConditionType.PLANNED: "False", ConditionType.DEGRADED: "True"}
ANNOUNCED = (
    ConditionType.PLANNED,
    ConditionType.AVAILABLE,
    ConditionType.PROGRESSING,
    ConditionType.DEGRADED,
    ConditionType.READY,
)
MAX_PASS_MESSAGE = 1000
"""Maximum number of characters of messages that are built here; the API server accepts 1024."""
REASONS_AND_VERBS: dict[Change, tuple[str, str]] = {
    Change.MISSING: ("Created", "Created"),
    Change.OUTDATED: ("Updated", "Updated"),
    Change.DRIFTED: ("Repaired", "Repaired"),
    Change.NOT_NEEDED: ("Deleted", "Deleted"),
}


@dataclass(frozen=True, slots=True)
class EventContent:
    """Type, reason and message of one Kubernetes event, before the event is written."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


def pass_events(old: Status, new: Status | None, applied: Sequence[AppliedChange]) -> list[EventContent]:
    """Return the events of one pass: at most one per kind of change, and one per condition that changed."""
    if new is None:
        return child_events(applied)
    return [
        *child_events(applied),
        *_scaling_events(old, new),
        *_canary_events(old, new),
        *_condition_events(old, new),
    ]


def child_events(applied: Sequence[AppliedChange]) -> list[EventContent]:
    """Return one event for each kind of change of children."""
    events: list[EventContent] = []
    for change, (reason, verb) in REASONS_AND_VERBS.items():
        changes = [item for item in applied if item.change is change]
        if changes:
            refs = ", ".join(
                f"{item.ref} ({item.detail})" if item.detail else str(item.ref) for item in changes
            )
            events.append(EventContent("Normal", reason, f"{verb} {refs}"))
    return events


def _scaling_events(old: Status, new: Status) -> list[EventContent]:
    """Return the events of changed decisions about the number of engines, of each pool at most one."""
    before = {"": old.scaling, **{f"{pool.name} ": pool.scaling for pool in old.pools}}
    after = {"": new.scaling, **{f"{pool.name} ": pool.scaling for pool in new.pools}}
    events = []
    for pool, decision in after.items():
        previous = before.get(pool)
        if previous is None or decision is None or previous.desired == decision.desired:
            continue
        reason = "ScaledUp" if decision.desired > previous.desired else "ScaledDown"
        message = (
            f"Changed the number of {pool}engines from {previous.desired} to {decision.desired}: "
            f"{decision.reason}"
        )
        events.append(EventContent("Normal", reason, bounded(message, MAX_PASS_MESSAGE)))
    return events


def _canary_events(old: Status, new: Status) -> list[EventContent]:
    """Return the event of a canary whose weight changed, or whose candidate is promoted."""
    before, after = old.canary, new.canary
    if after is None:
        return []
    same = before is not None and before.revision == after.revision
    if after.phase == "Promoting":
        if before is not None and same and before.phase == "Promoting":
            return []
        message = f"All engines get revision {after.revision} after {after.steps} steps: {after.verdict}"
        return [EventContent("Normal", "CanaryPromoted", bounded(message, MAX_PASS_MESSAGE))]
    if before is not None and same and (before.weight, before.shadow) == (after.weight, after.shadow):
        return []
    if after.shadow:
        message = f"Revision {after.revision} gets copies of {after.shadow}% of the conversations"
        return [EventContent("Normal", "CanaryStep", message)]
    if not after.weight:
        return []
    message = (
        f"Revision {after.revision} gets {after.weight}% of the conversations, in step {after.step} of "
        f"{after.steps}"
    )
    return [EventContent("Normal", "CanaryStep", message)]


def _condition_events(old: Status, new: Status) -> list[EventContent]:
    events: dict[str, EventContent] = {}
    for type_ in ANNOUNCED:
        before, after = find_condition(old.conditions, type_), find_condition(new.conditions, type_)
        if after is None or _same(before, after):
            continue
        if before is None and after.status == _initial_status(type_):
            # The first status of a new object is no change.
            continue
        trouble = after.status == TROUBLE.get(type_)
        message = f"{type_} became {after.status}: {after.message}"
        # Several conditions may have the same cause: one event is enough, a warning rather than a note.
        if trouble or after.reason not in events:
            events[after.reason] = EventContent("Warning" if trouble else "Normal", after.reason, message)
    return list(events.values())


def _same(before: Condition | None, after: Condition) -> bool:
    return before is not None and (before.status, before.reason) == (after.status, after.reason)


def _initial_status(type_: ConditionType) -> str:
    return "True" if type_ is ConditionType.PROGRESSING else "False"


MAX_EVENT_MESSAGE = 1024
"""Characters of a message that the API server accepts."""
MAX_COUNTS = 4096
"""Number of events whose repetitions are counted."""
MAX_PENDING = 16_384
"""Maximum number of events that wait to be written; further events are lost."""
MAX_DELAY_SECONDS = 60.0
"""Longest time, in seconds, that an event waits because passes are due."""
BUSY_POLL_SECONDS = 0.1
"""Seconds between two checks whether passes are due."""
FLUSH_SECONDS = 2.0
"""Longest time, in seconds, to write pending events when the operator ends."""
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PendingEvent:
    """An event about one object that waits to be written."""

    name: str
    """Name of the object."""
    namespace: str
    uid: str
    version: str
    """Version of the object (its resourceVersion)."""
    content: EventContent
    occurred_at: datetime
    kind: str = names.KIND


def pending_event(owner: Mapping[str, Any], content: EventContent, now: datetime) -> PendingEvent:
    """Return an event about `owner`, which keeps the identity of the object and not its manifest."""
    meta = owner["metadata"]
    version = meta.get("resourceVersion", "")
    return PendingEvent(
        meta["name"], meta["namespace"], meta["uid"], version, content, now, str(owner["kind"])
    )


def event_manifest(event: PendingEvent, *, reporter: str) -> Manifest:
    """Return the Event to write; `reporter` is the name of this operator. Pure."""
    content = event.content
    identity = [event.uid, content.type, content.reason, content.message]
    when = timestamp(event.occurred_at)
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {
            "name": f"{event.name}.{digest(identity)}",
            "namespace": event.namespace,
            "labels": {
                names.LABEL_MANAGED_BY: names.MANAGED_BY,
                names.LABEL_INSTANCE: names.instance(event.kind, event.name),
            },
        },
        "involvedObject": {
            "apiVersion": names.API_VERSION,
            "kind": event.kind,
            "name": event.name,
            "namespace": event.namespace,
            "uid": event.uid,
            "resourceVersion": event.version,
        },
        "type": content.type,
        "reason": content.reason,
        "message": bounded(content.message, MAX_EVENT_MESSAGE),
        "firstTimestamp": when,
        "lastTimestamp": when,
        "count": 1,
        "source": {"component": names.MANAGED_BY},
        "reportingComponent": names.MANAGED_BY,
        "reportingInstance": reporter,
    }


class EventRecorder:
    """The writer of events, which writes one after the other, in a task of its own.

    It remembers how often each of the last `MAX_COUNTS` events was recorded.

    Args:
        client: the API server.
        reporter: name of this operator in events.
        busy: returns whether passes are due, whose requests are sent before requests for events.
    """

    def __init__(
        self, client: KubeClient, *, reporter: str, busy: Callable[[], bool] = lambda: False
    ) -> None:
        self._client = client
        self._reporter = reporter
        self._busy = busy
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._pending: deque[tuple[float, PendingEvent]] = deque()
        """Events to write, each with the time of the event loop at which it was recorded."""
        self._wakeup = asyncio.Event()

    def record(self, event: PendingEvent) -> None:
        """Queue the event behind those that wait; log and drop it if `MAX_PENDING` already wait."""
        if len(self._pending) >= MAX_PENDING:
            _log_lost(event, f"{MAX_PENDING} other events wait to be written")
            return
        self._pending.append((asyncio.get_running_loop().time(), event))
        self._wakeup.set()

    async def run(self) -> None:
        """Write events until cancelled, then those that still wait, for `FLUSH_SECONDS` at most."""
        try:
            while True:
                await self._wakeup.wait()
                while self._pending:
                    await self._wait_for_passes()
                    await self._next()
                self._wakeup.clear()
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS):
                    await self.flush()

    async def flush(self) -> None:
        """Write all pending events, or log those that cannot be written."""
        while self._pending:
            await self._next()

    async def _wait_for_passes(self) -> None:
        """Wait until no pass is due, or the oldest event has waited long enough."""
        loop = asyncio.get_running_loop()
        while (  # noqa: ASYNC110 - passes begin and end too often to signal each of them
            self._busy() and self._pending and loop.time() - self._pending[0][0] < MAX_DELAY_SECONDS
        ):
            await asyncio.sleep(BUSY_POLL_SECONDS)

    async def _next(self) -> None:
        if self._pending:
            _, event = self._pending.popleft()
            await self._post(event)

    async def _post(self, event: PendingEvent) -> None:
        """Create the event, or raise its count if it was written before."""
        manifest = event_manifest(event, reporter=self._reporter)
        name = manifest["metadata"]["name"]
        count = self._counts.get(name, 0) + 1
        self._remember(name, count)
        try:
            try:
                await self._client.create(manifest)
            except Conflict:
                patch = {
                    "count": await self._total_count(manifest, count),
                    "lastTimestamp": manifest["lastTimestamp"],
                }
                await self._client.merge(EVENT, event.namespace, name, patch)
        except ClusterError as error:
            _log_lost(event, str(error))

    async def _total_count(self, manifest: Manifest, count: int) -> int:
        """Return `count`; after a restart, one more than the count recorded in the cluster."""
        if count > 1:
            return count
        meta = manifest["metadata"]
        posted = await self._client.get(EVENT, meta["namespace"], meta["name"]) or {}
        count = int(posted.get("count") or 1) + 1
        self._remember(meta["name"], count)
        return count

    def _remember(self, name: str, count: int) -> None:
        self._counts[name] = count
        self._counts.move_to_end(name)
        if len(self._counts) > MAX_COUNTS:
            self._counts.popitem(last=False)


def _log_lost(event: PendingEvent, error: str) -> None:
    log.warning(
        "event_lost",
        reason=event.content.reason,
        message=bounded(event.content.message, MAX_EVENT_MESSAGE),
        error=error,
    )
