"""`DeploymentStatus`: the status of a MambaDeployment as the operator wrote it, read from a cluster.

Only the objects are read, with the rights of the kubeconfig; pods are not contacted and nothing is changed.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import quote

from mamba_api import names
from mamba_cli.errors import InvalidInput, RunFailed

PAGE_OBJECTS = 500
"""Number of objects per page of a list request."""
_TROUBLE = {"Planned": "False", "Available": "False", "Degraded": "True", "Ready": "False"}
"""Status of a condition that reports a problem, by the type of the condition."""


@dataclass(frozen=True, slots=True)
class PoolState:
    """State of one pool, as the operator wrote it.

    None = the operator has not written the field.
    """

    name: str
    replicas: int
    """Desired number of engines."""
    ready_replicas: int
    strategy: str | None = None
    slots: int | None = None
    max_running_requests: int | None = None
    headroom: str | None = None


@dataclass(frozen=True, slots=True)
class DeploymentStatus:
    """State of one MambaDeployment, as the operator wrote it.

    None = the operator has not written the field.
    """

    name: str
    namespace: str
    ready: str
    """Status of the condition Ready: True, False or Unknown."""
    reason: str
    message: str
    current: bool
    """Whether the status belongs to the newest spec."""
    model: str
    replicas: int
    """Desired number of engines."""
    ready_replicas: int
    strategy: str | None = None
    slots: int | None = None
    max_running_requests: int | None = None
    headroom: str | None = None
    pools: tuple[PoolState, ...] = ()
    """Pools of a deployment with disaggregation, each with its plan."""
    url: str = ""
    troubles: dict[str, str] = field(default_factory=dict)
    """Conditions other than Ready that report a problem, with their messages."""

    def to_json(self) -> dict[str, Any]:
        """Return the object that `status --namespace NS --output json` prints."""
        return asdict(self)


async def deployment_statuses(
    namespace: str, name: str | None, kubeconfig: str | None, timeout: float
) -> list[DeploymentStatus]:
    """Return the statuses in a namespace, or only the status of `name`, sorted by name.

    Each answer of the API server may take `timeout` seconds. Raises the errors of `deployments_of`.
    """
    objects = await deployments_of(namespace, name, kubeconfig, timeout)
    return sorted(map(_status, objects), key=lambda status: status.name)


async def deployments_of(
    namespace: str, name: str | None, kubeconfig: str | None, timeout: float
) -> list[dict[str, Any]]:
    """Return the MambaDeployments of a namespace, or the one called `name`, as the API server sends them.

    Each answer may take `timeout` seconds. Raises `InvalidInput` without a usable kubeconfig, and `RunFailed`
    when the API server refuses the request or the object does not exist.
    """
    # The client of the API server is slow to import, and only this form of the command needs it.
    from mamba_kube.access import connected, load_access
    from mamba_kube.api_server import ApiServer
    from mamba_kube.errors import ApiError, NoClusterAccess

    collection = f"/apis/{names.API_VERSION}/namespaces/{quote(namespace, safe='')}/{names.PLURAL}"

    async def listed(server: ApiServer) -> list[dict[str, Any]]:
        if name is not None:
            return [await server.request("GET", f"{collection}/{quote(name, safe='')}")]
        items: list[dict[str, Any]] = []
        query = {"limit": str(PAGE_OBJECTS)}
        while True:
            answer = await server.request("GET", collection, query=query)
            items += answer.get("items") or []
            if not (token := (answer.get("metadata") or {}).get("continue")):
                return items
            query = {"limit": str(PAGE_OBJECTS), "continue": token}

    try:
        async with connected(await load_access(kubeconfig), timeout=timeout) as server:
            return await listed(server)
    except NoClusterAccess as error:
        raise InvalidInput(str(error)) from error
    except ApiError as error:
        if error.status == 404 and name is not None:
            raise RunFailed(f"there is no MambaDeployment {name} in the namespace {namespace}") from error
        message = (
            "the cluster has no MambaDeployment CRD: install the chart" if error.status == 404 else str(error)
        )
        raise RunFailed(message) from error


def _status(manifest: dict[str, Any]) -> DeploymentStatus:
    meta, spec, status = (manifest.get(part) or {} for part in ("metadata", "spec", "status"))
    conditions = {str(condition.get("type")): condition for condition in status.get("conditions") or ()}
    ready, plan = conditions.get("Ready") or {}, status.get("plan") or {}
    pools = tuple(_pool(pool) for pool in status.get("pools") or ())
    return DeploymentStatus(
        name=str(meta.get("name", "")),
        namespace=str(meta.get("namespace", "")),
        ready=str(ready.get("status", "Unknown")),
        reason=str(ready.get("reason", "")),
        message=str(ready.get("message", "")) or ("" if ready else "no operator has reconciled it yet"),
        current=int(status.get("observedGeneration") or 0) >= int(meta.get("generation") or 0),
        model=str((spec.get("model") or {}).get("uri", "")),
        replicas=_desired(spec, status, pools),
        ready_replicas=int(status.get("readyReplicas") or 0),
        strategy=plan.get("strategy"),
        slots=plan.get("slots"),
        max_running_requests=plan.get("maxRunningRequests"),
        headroom=plan.get("headroom"),
        pools=pools,
        url=str(status.get("url", "")),
        troubles=_troubles(conditions),
    )


def _desired(spec: dict[str, Any], status: dict[str, Any], pools: Sequence[PoolState]) -> int:
    """Return the desired number of engines."""
    if pools:
        return sum(pool.replicas for pool in pools)
    replicas = (status.get("scaling") or {}).get("desired", spec.get("replicas"))
    return 1 if replicas is None else int(replicas)


def _pool(status: dict[str, Any]) -> PoolState:
    plan = status.get("plan") or {}
    return PoolState(
        name=str(status.get("name", "")),
        replicas=int(status.get("desiredReplicas") or 0),
        ready_replicas=int(status.get("readyReplicas") or 0),
        strategy=plan.get("strategy"),
        slots=plan.get("slots"),
        max_running_requests=plan.get("maxRunningRequests"),
        headroom=plan.get("headroom"),
    )


def _troubles(conditions: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {
        kind: str(condition.get("message", ""))
        for kind, condition in conditions.items()
        if kind != "Ready" and condition.get("status") == _TROUBLE.get(kind)
    }
