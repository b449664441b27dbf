"""`observe_gateway`: reads one MambaGateway, its children and the MambaDeployments around it.

Called by `GatewayReconciler`; the reads go to the API server. `observe_gateway_indices` does the same from
the watches, which shows whether there is anything to decide.
"""

import asyncio
from dataclasses import dataclass

from mamba_api import names
from mamba_operator.objects.client import KubeClient
from mamba_operator.objects.indices import Indices
from mamba_operator.objects.kinds import HTTP_ROUTE, MAMBA_DEPLOYMENT, MAMBA_GATEWAY, OWNED, POD
from mamba_operator.objects.manifest import Key, Manifest
from mamba_operator.observation.snapshot import Snapshot
from mamba_operator.observe import list_optional, split_by_owner


@dataclass(frozen=True, slots=True)
class Observation:
    """One MambaGateway as a pass has read it, its children, and the MambaDeployments around it."""

    snapshot: Snapshot
    """The gateway with its children and pods."""
    deployments: tuple[Manifest, ...] = ()
    """All MambaDeployments of its namespace."""


async def observe_gateway(client: KubeClient, key: Key) -> Observation:
    """Read one gateway, its children and the MambaDeployments of its namespace from the API server.

    Raises:
        ClusterError: the API server did not answer every request; nothing partial is returned.
    """
    owner = await client.get(MAMBA_GATEWAY, key.namespace, key.name)
    if owner is None:
        return Observation(Snapshot(key, None))
    owner = {**owner, "apiVersion": names.API_VERSION, "kind": names.GATEWAY_KIND}
    selector = f"{names.LABEL_INSTANCE}={key.instance},{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
    try:
        async with asyncio.TaskGroup() as group:
            owned = [group.create_task(client.list(kind, key.namespace, selector=selector)) for kind in OWNED]
            pods = group.create_task(client.list(POD, key.namespace, selector=selector))
            routes = group.create_task(list_optional(client, HTTP_ROUTE, key, selector))
            deployments = group.create_task(client.list(MAMBA_DEPLOYMENT, key.namespace))
    except ExceptionGroup as errors:
        # A partial snapshot would look like missing children, so one failed request fails the pass.
        raise errors.exceptions[0] from None
    items = [item for task in owned for item in task.result()]
    not_served = {}
    if isinstance(answer := routes.result(), str):
        not_served[HTTP_ROUTE.kind] = answer
    else:
        items += answer
    return Observation(
        Snapshot(key, owner, *split_by_owner(owner, items), pods=tuple(pods.result()), not_served=not_served),
        tuple(deployments.result()),
    )


def observe_gateway_indices(indices: Indices, key: Key) -> Observation | None:
    """Return the observation from the watches, without a request; None when they do not hold the object."""
    owners = indices.of(MAMBA_GATEWAY, key) if indices.complete else []
    if len(owners) != 1:
        return None
    children = [item for kind in OWNED for item in indices.of(kind, key)]
    snapshot = Snapshot(
        key, owners[0], *split_by_owner(owners[0], children), pods=tuple(indices.of(POD, key))
    )
    near = (other for other in indices.keys(MAMBA_DEPLOYMENT) if other.namespace == key.namespace)
    return Observation(snapshot, tuple(one for other in near for one in indices.of(MAMBA_DEPLOYMENT, other)))
