"""`GatewayPod`: the pods of the gateways of MambaDeployments and MambaGateways, and their Service.

`gateway` and the package `shared_gateway` describe what differs; this module renders what is alike. Pure.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mamba_api import names
from mamba_operator.objects.manifest import Manifest
from mamba_operator.render.pod import ENDS_WHEN_TOLD, container_security, pod_security, probes
from mamba_operator.render.strategic_merge import merge

START_SECONDS = 300
"""Seconds for a start. After an outage all pods of a node start at once, each with a share of the processor,
and a pod that is killed starts from the beginning. A gateway that cannot start exits by itself."""
GATEWAY_GRACE_MARGIN_SECONDS = 15
"""Seconds of the grace period beyond the drain timeout."""
API_KEYS_MOUNT = "/run/mambaserve/api-keys"
API_KEYS_FILE = f"{API_KEYS_MOUNT}/{names.API_KEYS_KEY}"
ADAPTER_NAMES_MOUNT = "/etc/mambaserve/adapters"
ADAPTER_NAMES_FILE = "adapters.txt"
"""File of the names of adapters, and the key of the ConfigMap X-engine that holds it."""


@dataclass(frozen=True, slots=True)
class GatewayPod:
    """Values by which the pods of a MambaDeployment's gateway and of a MambaGateway differ."""

    instance: str
    """Label LABEL_INSTANCE."""
    service_account: str
    image: str
    pull_secrets: Sequence[Mapping[str, str]]
    replicas: int
    drain_seconds: float
    """Seconds for which a gateway that ends waits for its requests."""
    arguments: Sequence[str]
    environment: Sequence[Mapping[str, Any]]
    requests: Mapping[str, str]
    """Requested resources."""
    ports: Mapping[str, int]
    mounts: Sequence[Mapping[str, Any]]
    volumes: Sequence[Mapping[str, Any]]
    template: Mapping[str, Any] = field(default_factory=dict)
    """Pod template of the user."""
    template_field: str = "podTemplate"
    """Field of the spec that has the pod template."""
    restart: str | None = None
    """Value of the annotation ANNOTATION_RESTART."""

    @property
    def selector(self) -> dict[str, str]:
        """Labels that select the pods."""
        return names.selector(self.instance, "gateway")


def deployment_spec(pod: GatewayPod) -> dict[str, Any]:
    """Return the spec of the Deployment. Raises InvalidPatch when the pod template cannot be merged."""
    return {
        "replicas": pod.replicas,
        "selector": {"matchLabels": pod.selector},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "progressDeadlineSeconds": 600,
        "revisionHistoryLimit": 3,
        "paused": False,
        "template": _template(pod),
    }


def _template(pod: GatewayPod) -> Manifest:
    labels = names.labels(pod.instance, "gateway")
    base: Manifest = {
        "metadata": {
            "labels": labels,
            "annotations": {names.ANNOTATION_RESTART: pod.restart} if pod.restart else {},
        },
        "spec": {
            "serviceAccountName": pod.service_account,
            "automountServiceAccountToken": True,
            "enableServiceLinks": False,
            **ENDS_WHEN_TOLD,
            "terminationGracePeriodSeconds": math.ceil(pod.drain_seconds) + GATEWAY_GRACE_MARGIN_SECONDS,
            "securityContext": pod_security(),
            "containers": [_container(pod)],
            "volumes": [{"name": "scratch", "emptyDir": {}}, *pod.volumes],
            **_spread(pod),
        },
    }
    if pod.pull_secrets:
        base["spec"]["imagePullSecrets"] = list(pod.pull_secrets)
    merged = merge(base, pod.template, pod.template_field)
    metadata = merged["metadata"] if isinstance(merged.get("metadata"), dict) else {}
    return {**merged, "metadata": {**metadata, "labels": {**(metadata.get("labels") or {}), **labels}}}


def _spread(pod: GatewayPod) -> dict[str, Any]:
    """Return constraints that spread several gateways over nodes, as far as there are enough nodes."""
    if pod.replicas < 2:
        return {}
    constraint = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": pod.selector},
    }
    return {"topologySpreadConstraints": [constraint]}


def _container(pod: GatewayPod) -> dict[str, Any]:
    ports = [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in pod.ports.items()]
    scratch = {"name": "scratch", "mountPath": "/tmp"}  # noqa: S108 - the pod's own
    return {
        "name": names.GATEWAY_CONTAINER,
        "image": pod.image,
        "command": ["mambaserve"],
        "args": list(pod.arguments),
        "env": list(pod.environment),
        "ports": ports,
        "resources": {"requests": dict(pod.requests)},
        "securityContext": container_security(),
        "volumeMounts": [scratch, *pod.mounts],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **_probes(),
    }


def _probes() -> dict[str, Any]:
    """Return the probes. A gateway accepts requests before engines do: it holds them or answers 503."""
    gateway_probes = probes(START_SECONDS)
    start = gateway_probes["startupProbe"]
    return {**gateway_probes, "startupProbe": {**start, "httpGet": {**start["httpGet"], "path": "/livez"}}}


def api_keys_mount() -> dict[str, Any]:
    """Return the mount of the clients' API keys."""
    return {"name": "api-keys", "mountPath": API_KEYS_MOUNT, "readOnly": True}


def api_keys_volume(secret: str) -> dict[str, Any]:
    """Return the volume of the clients' API keys."""
    return {"name": "api-keys", "secret": {"secretName": secret, "defaultMode": 0o440}}


def adapter_names_mount() -> dict[str, Any]:
    """Return the mount of the names of adapters."""
    return {"name": "adapter-names", "mountPath": ADAPTER_NAMES_MOUNT, "readOnly": True}


def adapter_names_volume(config: str) -> dict[str, Any]:
    """Return the volume of the names of adapters, which the ConfigMap lacks where there are none."""
    items = [{"key": ADAPTER_NAMES_FILE, "path": ADAPTER_NAMES_FILE}]
    return {"name": "adapter-names", "configMap": {"name": config, "items": items, "optional": True}}


def service_port() -> dict[str, Any]:
    """Return the port of the Service at which clients call the gateways."""
    return {
        "name": names.HTTP_PORT_NAME,
        "port": names.SERVICE_PORT,
        "targetPort": names.HTTP_PORT_NAME,
        "protocol": "TCP",
    }


def budget_spec(instance: str) -> dict[str, Any]:
    """Return the spec of the disruption budget of several gateways."""
    return {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": names.selector(instance, "gateway")},
    }
