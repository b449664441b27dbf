"""The aggregation layer as the external metrics API meets it: its certificates, and what it is asked."""

import base64
import json
import ssl
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client import CollectorRegistry

from mamba_operator.autoscale.config import AutoscalerConfig
from mamba_operator.autoscale.decide import decide
from mamba_operator.autoscale.memory import AutoscalerMemory
from mamba_operator.autoscale.scaling_metrics import ScalingMetrics
from mamba_operator.objects.manifest import Key, Manifest
from scaled_fleet import seen
from testcluster.pki import Authority, Certificate, Identity

NAME = "ext.sys.svc"
API = "/apis/external.metrics.k8s.io/v1beta1"
DESIRED = "mambaserve_operator_scaling_desired_engines"
DEMAND = "mambaserve_operator_scaling_demand_engines"
SAYS = {"X-Remote-User": "hpa", "X-Remote-Group": "system:serviceaccounts"}


class Cluster:
    """Reviews and readings of the API server that are used here. `allowed` are (user, resource or path)."""

    def __init__(self, authority: Path) -> None:
        self.allowed = {("hpa", DESIRED), ("hpa", DEMAND), ("hpa", API), ("hpa", "nothing")}
        self.reviews: list[Manifest] = []
        self.bundles: list[bytes] = []
        self.slices: list[Manifest] = []
        self.calls: list[str] = []
        self.config_map: Manifest | None = {
            "data": {
                "requestheader-client-ca-file": authority.read_text(),
                "requestheader-allowed-names": '["front-proxy-client"]',
                "requestheader-username-headers": '["X-Remote-User"]',
                "requestheader-group-headers": '["X-Remote-Group"]',
                "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
            }
        }

    async def get(self, _kind: Any, namespace: str, name: str) -> Manifest | None:
        assert (namespace, name) == ("kube-system", "extension-apiserver-authentication")
        self.calls.append("get")
        return self.config_map

    async def create(self, review: Manifest) -> Manifest:
        self.reviews.append(review)
        spec = review["spec"]
        about = spec.get("resourceAttributes", {}).get("resource") or spec["nonResourceAttributes"]["path"]
        return {"status": {"allowed": (spec["user"], about) in self.allowed}}

    async def apply(self, manifest: Manifest) -> Manifest:
        self.calls.append("apply")
        self.slices.append(manifest)
        return manifest

    async def merge(self, _kind: Any, _namespace: None, name: str, patch: Any) -> Manifest:
        assert name == "v1beta1.external.metrics.k8s.io"
        self.bundles.append(base64.b64decode(patch["spec"]["caBundle"]))
        return {}


class Pki:
    """The API server's client certificate, and one of a stranger."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "front-proxy")
        self.proxy = self.authority.issue(Identity("proxy", "/CN=front-proxy-client", ("DNS:x",)))
        self.other_name = self.authority.issue(Identity("other", "/CN=other", ("DNS:x",)))
        self.stranger = Authority(folder / "else").issue(
            Identity("stranger", "/CN=front-proxy-client", ("DNS:x",))
        )


def shown(at: float = 100.0) -> ScalingMetrics:
    """Return metrics of two deployments in one namespace and one in another, seen at `at`."""
    metrics = ScalingMetrics(CollectorRegistry())
    for namespace, name in (("models", "a"), ("models", "b"), ("other", "a")):
        look = seen(2, 1.0, at=at)
        metrics.show(
            Key(namespace, name), look, decide(look, AutoscalerConfig(max_replicas=8), AutoscalerMemory())
        )
    return metrics


class Client:
    """Speaks to a running server as the aggregation layer does."""

    def __init__(self, port: int, authority: bytes) -> None:
        self.port, self.authority = port, authority

    async def get(
        self,
        path: str,
        *,
        show: Certificate | None,
        headers: dict[str, str] | None = None,
        method: str = "GET",
    ) -> tuple[int, Any]:
        context = ssl.create_default_context(cadata=self.authority.decode())
        if show is not None:
            context.load_cert_chain(show.certificate, show.key)
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                method, f"https://127.0.0.1:{self.port}{path}", ssl=context, server_hostname=NAME,
                headers=SAYS if headers is None else headers,
            ) as answer,
        ):  # fmt: skip
            return answer.status, json.loads(await answer.read())
