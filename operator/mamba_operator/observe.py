"""`observe`: reads one MambaDeployment and all that belongs to it into a frozen `Snapshot`.

Fresh reads from the API server: what is written is decided on what was seen. `observe_indices` makes the same
of what the watches hold, to see whether there is anything to decide. Called by `reconcile`.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from mamba_api import names
from mamba_operator.objects.client import KubeClient
from mamba_operator.objects.errors import Forbidden, NotFound
from mamba_operator.objects.indices import Indices
from mamba_operator.objects.kinds import MAMBA_DEPLOYMENT, OPTIONAL, OWNED, POD, Kind
from mamba_operator.objects.manifest import Key, Manifest, Ref, metadata, owner_uid, ref
from mamba_operator.observation.builtin_config import ShippedConfig, builtin_config, nothing_shipped
from mamba_operator.observation.node_reader import NodeReader
from mamba_operator.observation.placement import Node
from mamba_operator.observation.snapshot import Snapshot

OnListed = Callable[[Kind, Manifest], None]
"""Told about every object a list returned; watch freshness is measured with it."""


async def observe(
    client: KubeClient,
    key: Key,
    *,
    nodes: NodeReader | None = None,
    shipped: ShippedConfig = nothing_shipped,
    on_listed: OnListed | None = None,
    new: Manifest | None = None,
) -> Snapshot:
    """One consistent enough look: each list is exact, together they may be some milliseconds apart.

    `nodes` is what looks share; without it the nodes are read for this one. `new` is the object as watches
    hold it that are complete and hold no child of it. Then neither is asked for: what is made is only made
    where its name is free, and the status is for that version of the object.

    Raises:
        ClusterError: the API server did not give an answer; nothing partial is returned.
    """
    childless = new is not None
    owner = new or await client.get(MAMBA_DEPLOYMENT, key.namespace, key.name)
    if owner is None:
        return Snapshot(key, None)
    owner = {**owner, "apiVersion": names.API_VERSION, "kind": names.KIND}
    selector = f"{names.LABEL_INSTANCE}={key.name},{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
    try:
        async with asyncio.TaskGroup() as group:
            owned_kinds = () if childless else OWNED
            lists = [
                group.create_task(client.list(kind, key.namespace, selector=selector)) for kind in owned_kinds
            ]
            optional_kinds = () if childless and not _needs_optional_kinds(owner) else OPTIONAL
            optional = [group.create_task(_optional(client, kind, key, selector)) for kind in optional_kinds]
            pods = (
                [] if childless else [group.create_task(client.list(POD, key.namespace, selector=selector))]
            )
            gpus = group.create_task(_nodes(nodes or NodeReader(client), owner))
    except ExceptionGroup as failed:
        # One answer that did not come is enough: half a snapshot would look like missing children.
        raise failed.exceptions[0] from None
    watched = [(kind, item) for kind, task in zip(owned_kinds, lists, strict=True) for item in task.result()]
    unwatched: list[Manifest] = []
    not_served: dict[str, str] = {}
    for kind, task in zip(optional_kinds, optional, strict=True):
        found = task.result()
        if isinstance(found, str):
            not_served[kind.kind] = found
        else:
            unwatched += found
    if on_listed is not None and not childless:
        for kind, item in (*watched, (MAMBA_DEPLOYMENT, owner)):
            on_listed(kind, item)
    return Snapshot(
        key,
        owner,
        *_split_by_owner(owner, [*(item for _, item in watched), *unwatched]),
        pods=tuple(pod for task in pods for pod in task.result()),
        not_served=not_served,
        model_config=builtin_config(owner, shipped),
        nodes=gpus.result(),
    )


def observe_indices(
    indices: Indices, key: Key, nodes: tuple[Node, ...], *, shipped: ShippedConfig
) -> Snapshot | None:
    """The same of what the watches hold, without a request; None when they do not hold the object.

    It may lag behind and lacks the kinds that are not watched: good for seeing that nothing is to be done.
    """
    owners = indices.of(MAMBA_DEPLOYMENT, key) if indices.complete else []
    if len(owners) != 1:
        return None
    children = [item for kind in OWNED for item in indices.of(kind, key)]
    return Snapshot(
        key,
        owners[0],
        *_split_by_owner(owners[0], children),
        pods=tuple(indices.of(POD, key)),
        model_config=builtin_config(owners[0], shipped),
        nodes=nodes,
    )


def _split_by_owner(
    owner: Manifest, items: list[Manifest]
) -> tuple[dict[Ref, Manifest], dict[Ref, Manifest]]:
    """Children of the object, and objects of others that carry its labels."""
    uid = metadata(owner).get("uid")
    children: dict[Ref, Manifest] = {}
    foreign: dict[Ref, Manifest] = {}
    for item in items:
        (children if owner_uid(item) == uid else foreign)[ref(item)] = item
    return children, foreign


async def _optional(client: KubeClient, kind: Kind, key: Key, selector: str) -> list[Manifest] | str:
    """Children of a kind that a cluster may lack, or why there can be none."""
    try:
        return await client.list(kind, key.namespace, selector=selector)
    except NotFound:
        return f"the cluster has no kind {kind.kind} of {kind.api_version}: install its CRD"
    except Forbidden as error:
        # The role of an older chart: who asks for no such object has nothing to do with it.
        return str(error)


def _needs_optional_kinds(owner: Manifest) -> bool:
    return _section(_section(owner, "spec"), "gateway").get("inferencePool") is not None


async def _nodes(reader: NodeReader, owner: Manifest) -> tuple[Node, ...]:
    """The nodes with GPUs, where the plan depends on them."""
    spec = _section(owner, "spec")
    if (
        _section(spec, "memory").get("deviceMemory") is not None
        or _section(spec, "resources").get("gpus") == 0
    ):
        return ()
    return await reader.read()


def _section(parent: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of a spec that may be broken: whatever is no object counts as absent."""
    value = parent.get(name)
    return value if isinstance(value, Mapping) else {}
