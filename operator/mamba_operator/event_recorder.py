"""Writes Kubernetes events about a MambaDeployment: the same thing said again counts up, it does not pile up.

An event's name is a hash of what it says, so a restarted operator finds it again. Losing an event is no
failure: it is logged and the reconcile goes on.
"""

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog

from mamba_api import names
from mamba_api.bounded_text import bounded
from mamba_api.v1alpha1.conditions import timestamp
from mamba_operator.objects.client import KubeClient
from mamba_operator.objects.errors import ClusterError, Conflict
from mamba_operator.objects.kinds import EVENT
from mamba_operator.objects.manifest import Manifest, digest
from mamba_operator.pass_events import EventContent

MAX_MESSAGE = 1024
"""Longest message of an event."""
REMEMBERED = 4096
MOST_WAITING = 16_384
"""Events that wait to be written; what comes on top is lost."""
PATIENCE = 60.0
"""Seconds for which passes that are due come first."""
GLANCE = 0.1
"""Seconds between two looks whether there are none."""
LAST_SECONDS = 2.0
"""For what still waits when the operator ends."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PendingEvent:
    """One event about one object, before it is written."""

    name: str
    namespace: str
    uid: str
    version: str
    content: EventContent
    at: datetime


def pending_event(owner: Mapping[str, Any], content: EventContent, now: datetime) -> PendingEvent:
    """An event about `owner`, of which little is kept."""
    meta = owner["metadata"]
    version = meta.get("resourceVersion", "")
    return PendingEvent(meta["name"], meta["namespace"], meta["uid"], version, content, now)


def event_manifest(event: PendingEvent, *, reporter: str) -> Manifest:
    """The Event object. Pure."""
    content = event.content
    words = [event.uid, content.type, content.reason, content.message]
    when = timestamp(event.at)
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {
            "name": f"{event.name}.{digest(words)}",
            "namespace": event.namespace,
            "labels": {names.LABEL_MANAGED_BY: names.MANAGED_BY, names.LABEL_INSTANCE: event.name},
        },
        "involvedObject": {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "name": event.name,
            "namespace": event.namespace,
            "uid": event.uid,
            "resourceVersion": event.version,
        },
        "type": content.type,
        "reason": content.reason,
        "message": bounded(content.message, MAX_MESSAGE),
        "firstTimestamp": when,
        "lastTimestamp": when,
        "count": 1,
        "source": {"component": names.MANAGED_BY},
        "reportingComponent": names.MANAGED_BY,
        "reportingInstance": reporter,
    }


class EventRecorder:
    """Writes events one after the other, beside the passes, and remembers how often each was said, for as
    many as fit into its memory.

    `busy`: whether passes are due, for which the API server shall have its time first.
    """

    def __init__(
        self, client: KubeClient, *, reporter: str, busy: Callable[[], bool] = lambda: False
    ) -> None:
        self._client = client
        self._reporter = reporter
        self._busy = busy
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._waiting: deque[tuple[float, PendingEvent]] = deque()
        """With the time of the loop at which each was said."""
        self._wakeup = asyncio.Event()

    def record(self, event: PendingEvent) -> None:
        """Have the event written when those before it are: nobody waits for that."""
        if len(self._waiting) >= MOST_WAITING:
            _lost(event, f"{MOST_WAITING} others wait to be written")
            return
        self._waiting.append((asyncio.get_running_loop().time(), event))
        self._wakeup.set()

    async def run(self) -> None:
        """Write what was said, until cancelled; then what still waits, for `LAST_SECONDS` at most."""
        try:
            while True:
                await self._wakeup.wait()
                while self._waiting:
                    await self._wait_for_passes()
                    await self._next()
                self._wakeup.clear()
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_SECONDS):
                    await self.flush()

    async def flush(self) -> None:
        """Return when all that was said is written, or lost."""
        while self._waiting:
            await self._next()

    async def _wait_for_passes(self) -> None:
        """Return when no pass is due, or the oldest event has waited long enough."""
        loop = asyncio.get_running_loop()
        while (  # noqa: ASYNC110 - passes begin and end too often to say so each time
            self._busy() and self._waiting and loop.time() - self._waiting[0][0] < PATIENCE
        ):
            await asyncio.sleep(GLANCE)

    async def _next(self) -> None:
        if self._waiting:
            _, event = self._waiting.popleft()
            await self._post(event)

    async def _post(self, event: PendingEvent) -> None:
        """Create the event, or count it up when it was written before."""
        manifest = event_manifest(event, reporter=self._reporter)
        name = manifest["metadata"]["name"]
        count = self._counts.get(name, 0) + 1
        self._remember(name, count)
        try:
            try:
                await self._client.create(manifest)
            except Conflict:
                patch = {
                    "count": await self._counted(manifest, count),
                    "lastTimestamp": manifest["lastTimestamp"],
                }
                await self._client.merge(EVENT, event.namespace, name, patch)
        except ClusterError as error:
            _lost(event, str(error))

    async def _counted(self, manifest: Manifest, count: int) -> int:
        """`count`, or one more than is recorded when an operator before us, or we long ago, said it first."""
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
        if len(self._counts) > REMEMBERED:
            self._counts.popitem(last=False)


def _lost(event: PendingEvent, error: str) -> None:
    log.warning(
        "event_lost",
        reason=event.content.reason,
        message=bounded(event.content.message, MAX_MESSAGE),
        error=error,
    )
