"""`observe`: reads one MambaDeployment and all that belongs to it into a frozen `Snapshot`.

Fresh reads from the API server, never a cache: what a pass decides on is what it saw. Called by `reconcile`.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mamba_api import names
from mamba_operator.builtin_config import ShippedConfig, builtin_config, nothing_shipped
from mamba_operator.client import KubeClient
from mamba_operator.errors import Forbidden, NotFound
from mamba_operator.gpu_memory import GPU_MEMORY_LABEL, NODE_NAME
from mamba_operator.kinds import ENDPOINT_SLICE, MAMBA_DEPLOYMENT, NODE, OPTIONAL, OWNED, POD, Kind
from mamba_operator.manifest import Key, Manifest, Ref, metadata, owner_uid, ref
from mamba_operator.snapshot import Endpoint, Snapshot

SERVICE_LABEL = "kubernetes.io/service-name"

Seen = Callable[[Kind, Manifest], None]
"""Told about every object a list returned; watch freshness is measured with it."""


async def observe(
    client: KubeClient, key: Key, *, shipped: ShippedConfig = nothing_shipped, seen: Seen | None = None
) -> Snapshot:
    """One consistent enough look: each list is exact, together they may be some milliseconds apart.

    Raises:
        ClusterError: the API server did not give an answer; nothing partial is returned.
    """
    owner = await client.get(MAMBA_DEPLOYMENT, key.namespace, key.name)
    if owner is None:
        return Snapshot(key, None)
    owner = {**owner, "apiVersion": names.API_VERSION, "kind": names.KIND}
    ours = f"{names.LABEL_INSTANCE}={key.name},{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
    service = f"{SERVICE_LABEL}={names.Children(key.name).engine}"
    try:
        async with asyncio.TaskGroup() as group:
            lists = [group.create_task(client.list(kind, key.namespace, selector=ours)) for kind in OWNED]
            optional = [group.create_task(_optional(client, kind, key, ours)) for kind in OPTIONAL]
            pods = group.create_task(client.list(POD, key.namespace, selector=ours))
            slices = group.create_task(client.list(ENDPOINT_SLICE, key.namespace, selector=service))
            nodes = group.create_task(_nodes(client, owner))
    except ExceptionGroup as failed:
        # One answer that did not come is enough: half a snapshot would look like missing children.
        raise failed.exceptions[0] from None
    uid = metadata(owner).get("uid")
    children: dict[Ref, Manifest] = {}
    foreign: dict[Ref, Manifest] = {}
    watched = [(kind, item) for kind, task in zip(OWNED, lists, strict=True) for item in task.result()]
    unwatched: list[Manifest] = []
    not_served: dict[str, str] = {}
    for kind, task in zip(OPTIONAL, optional, strict=True):
        found = task.result()
        if isinstance(found, str):
            not_served[kind.kind] = found
        else:
            unwatched += found
    for item in (*(item for _, item in watched), *unwatched):
        (children if owner_uid(item) == uid else foreign)[ref(item)] = item
    if seen is not None:
        for kind, item in (*watched, (MAMBA_DEPLOYMENT, owner)):
            seen(kind, item)
    return Snapshot(
        key,
        owner,
        children,
        foreign,
        tuple(pods.result()),
        tuple(sorted(_endpoints(slices.result()), key=lambda one: one.address)),
        not_served,
        builtin_config(owner, shipped),
        nodes.result(),
    )


async def _optional(client: KubeClient, kind: Kind, key: Key, selector: str) -> list[Manifest] | str:
    """Children of a kind that a cluster may lack, or why there can be none."""
    try:
        return await client.list(kind, key.namespace, selector=selector)
    except NotFound:
        return f"the cluster has no kind {kind.kind} of {kind.api_version}: install its CRD"
    except Forbidden as error:
        # The role of an older chart: who asks for no such object has nothing to do with it.
        return str(error)


async def _nodes(client: KubeClient, owner: Manifest) -> tuple[Mapping[str, Any], ...]:
    """Labels of the nodes with GPUs, where the plan depends on them."""
    spec = _section(owner, "spec")
    if (
        _section(spec, "memory").get("deviceMemory") is not None
        or _section(spec, "resources").get("gpus") == 0
    ):
        return ()
    try:
        nodes = await client.list(NODE, None, selector=GPU_MEMORY_LABEL, metadata_only=True)
    except Forbidden:
        # An operator of some namespaces may not read nodes: then the spec has to say it.
        return ()
    return tuple(
        {**(metadata(node).get("labels") or {}), NODE_NAME: metadata(node).get("name")} for node in nodes
    )


def _section(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of a spec that may be broken: whatever is no object counts as absent."""
    value = of.get(name)
    return value if isinstance(value, Mapping) else {}


def _endpoints(slices: Iterable[Manifest]) -> set[Endpoint]:
    return {
        Endpoint(
            str(address),
            str((endpoint.get("targetRef") or {}).get("name", "")),
            # Absent means ready, says the API.
            (endpoint.get("conditions") or {}).get("ready") is not False,
        )
        for one in slices
        for endpoint in one.get("endpoints") or ()
        for address in endpoint.get("addresses") or ()
    }
