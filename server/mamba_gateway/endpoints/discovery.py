"""Discovery: the engines of a MambaDeployment, from the EndpointSlices of the Service `NAME-engine`.

`targets` is pure and works on plain decoded JSON (discovery.k8s.io/v1); `watch_engines` passes its result on.
Losing the API server loses no engine.
"""

from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any

from mamba_api import names
from mamba_api.names import authority
from mamba_gateway.endpoints.pool import Target
from mamba_gateway.endpoints.watch import Objects, Watch
from mamba_kube.api_server import ApiServer

SERVICE_LABEL = "kubernetes.io/service-name"
Sink = Callable[[Iterable[Target]], None]


async def watch_engines(server: ApiServer, namespace: str, deployment: str, sink: Sink, rng: Random) -> None:
    """Feed `sink` with the deployment's engines for ever; ends only by cancellation."""

    def changed(slices: Objects) -> None:
        sink(targets(slices.values()))

    path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
    await Watch(server, path, f"{SERVICE_LABEL}={deployment}-engine", changed).follow(rng)


def targets(slices: Iterable[Mapping[str, Any]]) -> tuple[Target, ...]:
    """Return one target for each address of all slices, in a stable order.

    An address may be in two slices for a moment while the control plane moves it: then the better standing
    counts, ready before not ready, staying before draining. A condition that is absent or null is true for
    `ready` and false for `terminating`, as the API says.
    """
    by_url: dict[str, Target] = {}
    for item in slices:
        if item.get("addressType") == "FQDN" or (port := _port(item.get("ports") or ())) is None:
            continue
        for endpoint in item.get("endpoints") or ():
            for target in _targets_of(endpoint, port):
                other = by_url.get(target.url)
                if other is None or (target.ready, not target.draining) > (other.ready, not other.draining):
                    by_url[target.url] = target
    return tuple(by_url[url] for url in sorted(by_url))


def _port(ports: Iterable[Mapping[str, Any]]) -> int | None:
    numbered = [port for port in ports if port.get("port") and port.get("protocol", "TCP") == "TCP"]
    named = [port for port in numbered if port.get("name") == names.HTTP_PORT_NAME]
    chosen = (named or numbered)[:1]
    return int(chosen[0]["port"]) if chosen else None


def _targets_of(endpoint: Mapping[str, Any], port: int) -> Iterable[Target]:
    conditions = endpoint.get("conditions") or {}
    name = (endpoint.get("targetRef") or {}).get("name") or ""
    terminating = bool(conditions.get("terminating"))
    for address in endpoint.get("addresses") or ():
        where = authority(address, port)
        yield Target(
            url=f"http://{where}",
            name=name or where,
            # A terminating pod is never `ready`, but may still finish what it has: `draining` says that.
            ready=conditions.get("ready") is not False or terminating,
            draining=terminating,
        )
