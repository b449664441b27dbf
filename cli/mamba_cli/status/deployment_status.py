"""Asks a cluster for the MambaDeployments of a namespace: what the operator wrote into their status.

Reads the objects alone, with the rights of the kubeconfig; no pod is asked. Changes nothing.
"""

from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import quote

from mamba_api import names
from mamba_cli.errors import InvalidInput, RunFailed

PAGE = 500
_TROUBLE = {"Planned": "False", "Available": "False", "Degraded": "True", "Ready": "False"}


@dataclass(frozen=True, slots=True)
class DeploymentStatus:
    """One MambaDeployment; None = its status does not say."""

    name: str
    namespace: str
    ready: str
    """Of the condition Ready: True, False or Unknown."""
    reason: str
    message: str
    current: bool
    """The status is of the newest spec."""
    model: str
    replicas: int
    """Engines wanted."""
    ready_replicas: int
    strategy: str | None = None
    slots: int | None = None
    max_running_requests: int | None = None
    headroom: str | None = None
    url: str = ""
    troubles: dict[str, str] = field(default_factory=dict)
    """Conditions other than Ready that tell of trouble, with their messages."""

    def to_json(self) -> dict[str, Any]:
        """The object `status --namespace NS --output json` prints."""
        return asdict(self)


async def deployment_statuses(
    namespace: str, name: str | None, kubeconfig: str | None, timeout: float
) -> list[DeploymentStatus]:
    """Those of a namespace, or the one of that `name`, by name. Raises as `deployments_of` does."""
    objects = await deployments_of(namespace, name, kubeconfig, timeout)
    return sorted(map(_status, objects), key=lambda each: each.name)


async def deployments_of(
    namespace: str, name: str | None, kubeconfig: str | None, timeout: float
) -> list[dict[str, Any]]:
    """The MambaDeployments of a namespace, or the one of that `name`, as the cluster gives them.

    Raises `InvalidInput` without a usable kubeconfig, `RunFailed` when the cluster refuses or there is none.
    """
    # The Kubernetes client is large, and only this form of the command needs it.
    from mamba_kube.access import connected, load_access
    from mamba_kube.api_server import ApiServer
    from mamba_kube.errors import ApiError, NoClusterAccess

    collection = f"/apis/{names.API_VERSION}/namespaces/{quote(namespace, safe='')}/{names.PLURAL}"

    async def found(server: ApiServer) -> list[dict[str, Any]]:
        if name is not None:
            return [await server.request("GET", f"{collection}/{quote(name, safe='')}")]
        items: list[dict[str, Any]] = []
        query = {"limit": str(PAGE)}
        while True:
            answer = await server.request("GET", collection, query=query)
            items += answer.get("items") or []
            if not (token := (answer.get("metadata") or {}).get("continue")):
                return items
            query = {"limit": str(PAGE), "continue": token}

    try:
        async with connected(await load_access(kubeconfig), timeout=timeout) as server:
            return await found(server)
    except NoClusterAccess as error:
        raise InvalidInput(str(error)) from error
    except ApiError as error:
        if error.status == 404 and name is not None:
            raise RunFailed(f"there is no MambaDeployment {name} in the namespace {namespace}") from error
        said = (
            "the cluster knows no MambaDeployments: install the chart" if error.status == 404 else str(error)
        )
        raise RunFailed(said) from error


def _status(manifest: dict[str, Any]) -> DeploymentStatus:
    meta, spec, status = (manifest.get(part) or {} for part in ("metadata", "spec", "status"))
    conditions = {str(each.get("type")): each for each in status.get("conditions") or ()}
    ready, plan = conditions.get("Ready") or {}, status.get("plan") or {}
    wanted = (status.get("scaling") or {}).get("desired", spec.get("replicas"))
    return DeploymentStatus(
        name=str(meta.get("name", "")),
        namespace=str(meta.get("namespace", "")),
        ready=str(ready.get("status", "Unknown")),
        reason=str(ready.get("reason", "")),
        message=str(ready.get("message", "")) or ("" if ready else "no operator has looked at it yet"),
        current=int(status.get("observedGeneration") or 0) >= int(meta.get("generation") or 0),
        model=str((spec.get("model") or {}).get("uri", "")),
        replicas=1 if wanted is None else int(wanted),
        ready_replicas=int(status.get("readyReplicas") or 0),
        strategy=plan.get("strategy"),
        slots=plan.get("slots"),
        max_running_requests=plan.get("maxRunningRequests"),
        headroom=plan.get("headroom"),
        url=str(status.get("url", "")),
        troubles={
            kind: str(each.get("message", ""))
            for kind, each in conditions.items()
            if kind != "Ready" and each.get("status") == _TROUBLE.get(kind)
        },
    )
