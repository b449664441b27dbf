"""Discovery: finds the engines of a MambaDeployment in the EndpointSlices of the Service `NAME-engine`.

`targets` is pure and works on decoded JSON (discovery.k8s.io/v1); `watch_engines` passes its result on. While
the API server cannot be reached, the last known engines stay.
"""

from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any

from mamba_api import names
from mamba_api.names import authority
from mamba_gateway.endpoints.pool import Shadow, Target
from mamba_gateway.endpoints.watch import Objects, Watch
from mamba_kube.api_server import ApiServer

SERVICE_LABEL = "kubernetes.io/service-name"
Sink = Callable[[Iterable[Target]], None]


async def watch_engines(server: ApiServer, namespace: str, deployment: str, sink: Sink, rng: Random) -> None:
    """Pass the engines of `deployment` to `sink` after every change, until the task is cancelled."""

    def changed(slices: Objects) -> None:
        sink(targets(slices.values(), names.Children(deployment).candidate_pods))

    path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
    await Watch(server, path, f"{SERVICE_LABEL}={deployment}-engine", changed).follow(rng)


def targets(slices: Iterable[Mapping[str, Any]], candidate_pods: str = "") -> tuple[Target, ...]:
    """Return one target for each address of all slices, in a stable order.

    Pods whose name begins with `candidate_pods` are candidates of a canary. Their weight is a label of the
    slices; without it they get no requests, as long as there are others.

    While the control plane moves an address, two slices may contain it. The better state then counts: ready
    before not ready, and not draining before draining. As the API defines, a condition that is absent or null
    means true for `ready` and false for `terminating`.
    """
    by_url: dict[str, Target] = {}
    for item in slices:
        if item.get("addressType") == "FQDN" or (port := _port(item.get("ports") or ())) is None:
            continue
        weight, shadow = _weight(item), _shadow(item)
        for endpoint in item.get("endpoints") or ():
            for target in _targets_of(endpoint, port, candidate_pods, weight, shadow):
                other = by_url.get(target.url)
                if other is None or (target.ready, not target.draining) > (other.ready, not other.draining):
                    by_url[target.url] = target
    return tuple(by_url[url] for url in sorted(by_url))


def _port(ports: Iterable[Mapping[str, Any]]) -> int | None:
    numbered = [port for port in ports if port.get("port") and port.get("protocol", "TCP") == "TCP"]
    named = [port for port in numbered if port.get("name") == names.HTTP_PORT_NAME]
    chosen = (named or numbered)[:1]
    return int(chosen[0]["port"]) if chosen else None


def _weight(item: Mapping[str, Any]) -> float:
    """Return the share of the conversations that candidates get, 0 to 1, by a slice's label."""
    return min(_label(item, names.LABEL_CANDIDATE_WEIGHT), 100) / 100


def _shadow(item: Mapping[str, Any]) -> Shadow | None:
    """Return which copies candidates get, by a slice's labels; None = they get none."""
    share, copies = min(_label(item, names.LABEL_SHADOW_SHARE), 100), _label(item, names.LABEL_SHADOW_COPIES)
    return Shadow(share / 100, copies) if share and copies else None


def _label(item: Mapping[str, Any], name: str) -> int:
    """Return the number in a label; 0 = there is none."""
    text = str(((item.get("metadata") or {}).get("labels") or {}).get(name, ""))
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 3 else 0


def _targets_of(
    endpoint: Mapping[str, Any], port: int, candidate_pods: str, weight: float, shadow: Shadow | None
) -> Iterable[Target]:
    conditions = endpoint.get("conditions") or {}
    name = (endpoint.get("targetRef") or {}).get("name") or ""
    candidate = bool(candidate_pods) and name.startswith(candidate_pods)
    terminating = bool(conditions.get("terminating"))
    for address in endpoint.get("addresses") or ():
        where = authority(address, port)
        yield Target(
            url=f"http://{where}",
            name=name or where,
            # A terminating pod is never `ready`, but it may still finish its requests, so it is `draining`.
            ready=conditions.get("ready") is not False or terminating,
            draining=terminating,
            candidate_share=weight if candidate else None,
            shadow=shadow if candidate else None,
        )
