"""kopf as the source of wake-ups: watches and indexes every owned kind, and turns each event into a key.

kopf watches, reconnects, multiplexes and indexes. It writes nothing: no finalizer, no annotation, no handler
progress. Called by `main`; an event only wakes an object, and its other content is dropped.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import kopf
import structlog

from mamba_api import names
from mamba_operator.objects.indices import Indices, index_id, indexed, owner_key
from mamba_operator.objects.kinds import MAMBA_DEPLOYMENT, MAMBA_GATEWAY, WATCHED, Kind
from mamba_operator.objects.manifest import Key, Manifest, owner_identity

Wake = Callable[[Key], None]
Delivered = Callable[[Kind, Manifest, bool], None]
"""Function that is called with every delivered object; the flag is True after a deletion."""

SERVER_TIMEOUT = 600
"""Seconds after which every watch is restarted; the API accepts whole seconds."""
CONNECT_TIMEOUT = 10.0

log = structlog.get_logger(__name__)


class NoDiffStorage(kopf.AnnotationsDiffBaseStorage):
    """Storage that keeps kopf from copying each object of each event for a comparison that nothing here uses.

    The copies took a third of the processor time of kopf's events.
    """

    def build(self, **_: Any) -> kopf.BodyEssence:
        """Return an empty essence of the object."""
        return cast("kopf.BodyEssence", {})


async def run_watches(
    registry: kopf.OperatorRegistry, namespaces: Sequence[str], take_signals: Callable[[], None]
) -> None:
    """Watch these namespaces, or the whole cluster without any, until cancelled.

    When kopf ends, it cancels all tasks that are younger than the watches, ours included. `take_signals` is
    called as soon as kopf has installed its signal handlers, which would end its watches and nothing else.
    """
    older = asyncio.all_tasks()
    tasks = await kopf.spawn_tasks(
        registry=registry,
        settings=make_settings(namespaced=bool(namespaces)),
        clusterwide=not namespaces,
        namespaces=list(namespaces),
        standalone=True,
    )
    take_signals()
    await kopf.run_tasks(tasks, ignored=older)


def make_registry(
    wake: Wake, delivered: Delivered, indices: Indices, owners: Sequence[Kind] = (MAMBA_DEPLOYMENT,)
) -> kopf.OperatorRegistry:
    """Return a registry with one handler and one index for each kind, which are all alike.

    Args:
        wake: called with the key of each object for which an event has come.
        delivered: called with each object that a watch has delivered.
        indices: gets kopf's indices.
        owners: kinds that are reconciled, which the cluster serves.
    """
    registry = kopf.OperatorRegistry()

    async def take_indices(**kopf_indices: Any) -> None:
        indices.take(kopf_indices)

    kopf.on.startup(registry=registry)(take_indices)
    for kind in (*owners, *WATCHED):
        kopf.index(kind.group, kind.version, kind.plural, id=index_id(kind), registry=registry)(
            _indexer(kind)
        )
        kopf.on.event(kind.group, kind.version, kind.plural, id=f"wake-{kind.plural}", registry=registry)(
            _handler(kind, wake, delivered, indices)
        )
    kopf.on.login(registry=registry)(_login)
    return registry


def make_settings(*, namespaced: bool) -> kopf.OperatorSettings:
    """Return settings that turn off everything in kopf except watching."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.persistence.finalizer = names.FINALIZER
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=names.GROUP)
    settings.persistence.diffbase_storage = NoDiffStorage(prefix=names.GROUP, key="last-handled")
    settings.peering.standalone = True
    # A namespaced operator does not need new namespaces, and may not list them.
    settings.scanning.disabled = namespaced
    settings.watching.server_timeout = SERVER_TIMEOUT
    settings.watching.connect_timeout = CONNECT_TIMEOUT
    ours = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
    for kind in WATCHED:
        # The API server filters, because a cluster may have a hundred thousand other pods.
        settings.watching.label_selectors[kind.group, kind.version, kind.plural] = ours
    settings.queueing.idle_timeout = 1.0
    settings.queueing.exit_timeout = 1.0
    # kopf would kill the process some seconds after its watches ended, but they are restarted.
    settings.process.ultimate_exiting_timeout = None
    return settings


def _indexer(kind: Kind) -> Callable[..., Any]:
    async def index(body: kopf.Body, **_: Any) -> dict[Key, Manifest]:
        return indexed(kind, body)

    return index


def _handler(kind: Kind, wake: Wake, delivered: Delivered, indices: Indices) -> Callable[..., Any]:
    async def on_event(type: str | None, body: kopf.Body, **_: Any) -> None:  # noqa: A002 - kopf's name
        indices.complete = True
        plain: Manifest = {"metadata": dict(body.get("metadata") or {})}
        delivered(kind, plain, type == "DELETED")
        key = owner_key(kind, plain)
        if key is not None:
            indices.confirm(key, plain)
            wake(key)
        # The label may name another object by now; the owner reference names the owner.
        owner, namespace = owner_identity(plain), plain["metadata"].get("namespace")
        if owner and namespace and (controller := Key(str(namespace), owner[1], owner[0])) != key:
            wake(controller)
        if kind is MAMBA_DEPLOYMENT and key is not None:
            # Its model may be one of those that a gateway of the namespace serves, or no longer is.
            for gateway in indices.keys(MAMBA_GATEWAY):
                if gateway.namespace == key.namespace:
                    wake(gateway)

    return on_event


def _login(**kwargs: Any) -> kopf.ConnectionInfo | None:
    """Log in with the pod's service account or the kubeconfig; called again when the token has expired."""
    return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)
