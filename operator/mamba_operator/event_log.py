"""Writes Kubernetes events about a MambaDeployment: the same thing said again counts up, it does not pile up.

An event's name is a hash of what it says, so a restarted operator finds it again. Losing an event is no
failure: it is logged and the reconcile goes on.
"""

from collections import OrderedDict
from datetime import datetime

import structlog

from mamba_api import names
from mamba_api.v1alpha1.conditions import timestamp
from mamba_operator.announce import Announcement
from mamba_operator.objects.client import KubeClient
from mamba_operator.objects.errors import ClusterError, Conflict
from mamba_operator.objects.kinds import EVENT
from mamba_operator.objects.manifest import Manifest, digest

MAX_MESSAGE = 1024
"""Longest message of an event."""
REMEMBERED = 4096

log = structlog.get_logger(__name__)


def event_manifest(owner: Manifest, announcement: Announcement, *, reporter: str, now: datetime) -> Manifest:
    """The Event object. Pure."""
    meta = owner["metadata"]
    said = [meta["uid"], announcement.type, announcement.reason, announcement.message]
    when = timestamp(now)
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {
            "name": f"{meta['name']}.{digest(said)}",
            "namespace": meta["namespace"],
            "labels": {names.LABEL_MANAGED_BY: names.MANAGED_BY, names.LABEL_INSTANCE: meta["name"]},
        },
        "involvedObject": {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "name": meta["name"],
            "namespace": meta["namespace"],
            "uid": meta["uid"],
            "resourceVersion": meta.get("resourceVersion", ""),
        },
        "type": announcement.type,
        "reason": announcement.reason,
        "message": announcement.message[:MAX_MESSAGE],
        "firstTimestamp": when,
        "lastTimestamp": when,
        "count": 1,
        "source": {"component": names.MANAGED_BY},
        "reportingComponent": names.MANAGED_BY,
        "reportingInstance": reporter,
    }


class EventLog:
    """Posts events and remembers how often each was said, for as many as fit into its memory."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._counts: OrderedDict[str, int] = OrderedDict()

    async def post(self, event: Manifest) -> None:
        """Create the event, or count it up when it was posted before."""
        name = event["metadata"]["name"]
        count = self._counts.get(name, 0) + 1
        self._remember(name, count)
        try:
            try:
                await self._client.create(event)
            except Conflict:
                patch = {"count": await self._counted(event, count), "lastTimestamp": event["lastTimestamp"]}
                await self._client.merge(EVENT, event["metadata"]["namespace"], name, patch)
        except ClusterError as error:
            log.warning("event_lost", reason=event["reason"], message=event["message"], error=str(error))

    async def _counted(self, event: Manifest, count: int) -> int:
        """`count`, or one more than is recorded when an operator before us, or we long ago, said it first."""
        if count > 1:
            return count
        meta = event["metadata"]
        posted = await self._client.get(EVENT, meta["namespace"], meta["name"]) or {}
        count = int(posted.get("count") or 1) + 1
        self._remember(meta["name"], count)
        return count

    def _remember(self, name: str, count: int) -> None:
        self._counts[name] = count
        self._counts.move_to_end(name)
        if len(self._counts) > REMEMBERED:
            self._counts.popitem(last=False)
