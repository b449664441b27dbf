"""Discovery: where the engines of a MambaDeployment are, and which of them drain.

Watches the EndpointSlices of the Service `NAME-engine` and the annotation that the operator puts on a pod
before it takes it away, and hands the targets on. Losing the API server loses no engine.
"""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

import yaml
from kubernetes.aio import client, config

from mamba_api import names
from mamba_gateway.api_server import ApiServer
from mamba_gateway.endpoints import Target
from mamba_gateway.slices import draining_pods, targets
from mamba_gateway.watch import Objects, Watch

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
SERVICE_LABEL = "kubernetes.io/service-name"
# The loader lets out what a file that is no kubeconfig makes it trip over.
_UNUSABLE = (config.ConfigException, OSError, yaml.YAMLError, ValueError, TypeError, AttributeError)
Sink = Callable[[Iterable[Target]], None]


class EngineView:
    """Slices and pods put together; tells the sink whenever either changes."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._slices: Objects | None = None
        self._draining: frozenset[str] = frozenset()

    def slices_changed(self, slices: Objects) -> None:
        """Take the Service's slices."""
        self._slices = slices
        self._tell()

    def pods_changed(self, pods: Objects) -> None:
        """Take the deployment's pods."""
        draining = draining_pods(pods.values())
        if draining != self._draining:
            self._draining = draining
            self._tell()

    def _tell(self) -> None:
        # Before the first list of slices nothing is known, which differs from knowing that there are none.
        if self._slices is not None:
            self._sink(targets(self._slices.values(), self._draining))


async def watch_engines(server: ApiServer, namespace: str, deployment: str, sink: Sink, rng: Random) -> None:
    """Feed `sink` with the deployment's engines for ever; ends only by cancellation."""
    view = EngineView(sink)
    slices = Watch(
        server,
        f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices",
        f"{SERVICE_LABEL}={deployment}-engine",
        view.slices_changed,
    )
    pods = Watch(
        server,
        f"/api/v1/namespaces/{namespace}/pods",
        f"{names.LABEL_NAME}={names.APP_NAME},{names.LABEL_INSTANCE}={deployment}",
        view.pods_changed,
        metadata_only=True,
    )
    async with asyncio.TaskGroup() as both:
        both.create_task(slices.follow(rng))
        both.create_task(pods.follow(rng))


async def configure(kubeconfig: str | None, namespace: str | None) -> tuple[Any, str]:
    """Client configuration and namespace: in-cluster if this is a pod, else from a kubeconfig.

    Raises ValueError when there is neither.
    """
    loader: Any = config
    configuration = client.Configuration()
    try:
        if kubeconfig is None and (own := _own_namespace()):
            loader.load_incluster_config(client_configuration=configuration)
            return configuration, namespace or own
        await loader.load_kube_config(
            config_file=kubeconfig, client_configuration=configuration, persist_config=False
        )
        _, active = loader.list_kube_config_contexts(config_file=kubeconfig)
    except _UNUSABLE as error:
        said = " ".join(str(error).split())
        raise ValueError(f"no usable Kubernetes configuration: {said}; give --kubeconfig FILE") from error
    return configuration, namespace or (active.get("context") or {}).get("namespace") or "default"


def _own_namespace() -> str | None:
    return NAMESPACE_FILE.read_text().strip() if NAMESPACE_FILE.exists() else None
