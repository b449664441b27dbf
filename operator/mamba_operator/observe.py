"""`observe`: reads one MambaDeployment and everything that belongs to it into a frozen `Snapshot`.

Called by `reconcile`. The reads go to the API server, so that changes are decided on its current state.
`observe_indices` builds a snapshot from the watches, which shows whether there is anything to decide.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mamba_api import names
from mamba_operator.objects.client import KubeClient
from mamba_operator.objects.errors import Forbidden, NotFound
from mamba_operator.objects.indices import Indices
from mamba_operator.objects.kinds import MAMBA_DEPLOYMENT, OPTIONAL, OWNED, POD, Kind
from mamba_operator.objects.manifest import Key, Manifest, Ref, metadata, owner_uid, ref, section
from mamba_operator.observation.node_reader import NodeReader
from mamba_operator.observation.placement import Node
from mamba_operator.observation.snapshot import ShippedConfig, Snapshot, nothing_shipped

SCHEME = "builtin://"
OnListed = Callable[[Kind, Manifest], None]
"""Called with every listed object. The operator measures by it whether its watches are up to date."""


async def observe(
    client: KubeClient,
    key: Key,
    *,
    nodes: NodeReader | None = None,
    shipped: ShippedConfig = nothing_shipped,
    on_listed: OnListed | None = None,
    new: Manifest | None = None,
) -> Snapshot:
    """Read one object and what belongs to it from the API server.

    Each list is exact, but the lists may be some milliseconds apart.

    Args:
        client: the API server.
        key: the object.
        nodes: reader that passes share; None = the nodes are read for this snapshot only.
        shipped: reads configurations of shipped models.
        on_listed: called with every object that a list returned.
        new: the object as the watches hold it, if they are complete and hold no child of it. Neither the
            object nor its children are then read: a child is created only where its name is free, and the
            status is written for this version of the object only.

    Raises:
        ClusterError: the API server did not answer every request; nothing partial is returned.
    """
    owner = new or await client.get(MAMBA_DEPLOYMENT, key.namespace, key.name)
    if owner is None:
        return Snapshot(key, None)
    owner = {**owner, "apiVersion": names.API_VERSION, "kind": names.KIND}
    lists = await _read_lists(client, key, owner, nodes or NodeReader(client), childless=new is not None)
    if on_listed is not None and new is None:
        for kind, item in (*lists.watched, (MAMBA_DEPLOYMENT, owner)):
            on_listed(kind, item)
    return Snapshot(
        key,
        owner,
        *split_by_owner(owner, [*(item for _, item in lists.watched), *lists.unwatched]),
        pods=tuple(lists.pods),
        not_served=lists.not_served,
        model_config=builtin_config(owner, shipped),
        nodes=lists.nodes,
    )


@dataclass(frozen=True, slots=True)
class _Lists:
    """Answers of the API server to the requests for the children of one object."""

    watched: list[tuple[Kind, Manifest]]
    """Children of the kinds that the operator watches."""
    unwatched: list[Manifest]
    """Children of optional kinds."""
    not_served: dict[str, str]
    """Value of `Snapshot.not_served`."""
    pods: list[Manifest]
    nodes: tuple[Node, ...]


async def _read_lists(
    client: KubeClient, key: Key, owner: Manifest, reader: NodeReader, *, childless: bool
) -> _Lists:
    """Send all requests about the children concurrently, and return the answers.

    For a `childless` object, only nodes and optional kinds are read. `reader` reads the nodes.
    """
    selector = f"{names.LABEL_INSTANCE}={key.name},{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
    owned_kinds = () if childless else (*OWNED, POD)
    optional_kinds = () if childless and not _needs_optional_kinds(owner) else OPTIONAL
    try:
        async with asyncio.TaskGroup() as group:
            owned = [
                (kind, group.create_task(client.list(kind, key.namespace, selector=selector)))
                for kind in owned_kinds
            ]
            optional = [
                (kind, group.create_task(list_optional(client, kind, key, selector)))
                for kind in optional_kinds
            ]
            nodes = group.create_task(_nodes(reader, owner))
    except ExceptionGroup as errors:
        # A partial snapshot would look like missing children, so one failed request fails the pass.
        raise errors.exceptions[0] from None
    unwatched: list[Manifest] = []
    not_served: dict[str, str] = {}
    for kind, task in optional:
        if isinstance(answer := task.result(), str):
            not_served[kind.kind] = answer
        else:
            unwatched += answer
    return _Lists(
        [(kind, item) for kind, task in owned if kind is not POD for item in task.result()],
        unwatched,
        not_served,
        [pod for kind, task in owned if kind is POD for pod in task.result()],
        nodes.result(),
    )


def observe_indices(
    indices: Indices, key: Key, nodes: tuple[Node, ...], *, shipped: ShippedConfig
) -> Snapshot | None:
    """Build a snapshot from the watches, without a request; None when they do not hold the object.

    The snapshot may lag behind and lacks the kinds that are not watched, so it only shows that nothing has to
    be changed.
    """
    owners = indices.of(MAMBA_DEPLOYMENT, key) if indices.complete else []
    if len(owners) != 1:
        return None
    children = [item for kind in OWNED for item in indices.of(kind, key)]
    return Snapshot(
        key,
        owners[0],
        *split_by_owner(owners[0], children),
        pods=tuple(indices.of(POD, key)),
        model_config=builtin_config(owners[0], shipped),
        nodes=nodes,
    )


def split_by_owner(owner: Manifest, items: list[Manifest]) -> tuple[dict[Ref, Manifest], dict[Ref, Manifest]]:
    """Return the items that the object controls, which are its children, and the other items."""
    uid = metadata(owner).get("uid")
    children: dict[Ref, Manifest] = {}
    foreign: dict[Ref, Manifest] = {}
    for item in items:
        (children if owner_uid(item) == uid else foreign)[ref(item)] = item
    return children, foreign


async def list_optional(client: KubeClient, kind: Kind, key: Key, selector: str) -> list[Manifest] | str:
    """Return the children of a kind that a cluster may lack, or the reason why there can be none."""
    try:
        return await client.list(kind, key.namespace, selector=selector)
    except NotFound:
        return f"the cluster has no kind {kind.kind} of {kind.api_version}: install its CRD"
    except Forbidden as error:
        # The role of an older chart lacks this right, which concerns only objects that need the kind.
        return str(error)


def _needs_optional_kinds(owner: Manifest) -> bool:
    return section(section(owner, "spec"), "gateway").get("inferencePool") is not None


async def _nodes(reader: NodeReader, owner: Manifest) -> tuple[Node, ...]:
    """Return the nodes with GPUs; empty if the memory plan of the object does not depend on them."""
    spec = section(owner, "spec")
    pools = section(spec, "disaggregation")
    parts = [spec, *(section(pools, pool) for pool in pools)]
    counts = [section(part, "resources").get("gpus") for part in parts]
    without_gpus = counts[0] == 0 and not any(counts)
    if section(spec, "memory").get("deviceMemory") is not None or without_gpus:
        return ()
    return await reader.read()


def builtin_config(owner: Manifest, read: ShippedConfig) -> Mapping[str, Any] | None:
    """Return the config.json of the object's model if that is a shipped one; None otherwise.

    An invalid spec has no shipped model.
    """
    spec = owner.get("spec")
    model = spec.get("model") if isinstance(spec, dict) else None
    uri = model.get("uri") if isinstance(model, dict) else None
    return read(uri) if isinstance(uri, str) and uri.startswith(SCHEME) else None
