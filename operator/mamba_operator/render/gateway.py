"""The gateway of a deployment: its pods, the Service X that users call, and the InferencePool. Pure.

HTTPRoutes of the Gateway API can name the InferencePool, of which the gateway picks the engines.
"""

import math
from typing import Any

from mamba_api import names
from mamba_api.v1alpha1 import MambaDeployment
from mamba_api.v1alpha1.gateway import Limits, NamedKeyLimits
from mamba_operator.objects.kinds import DEPLOYMENT, DISRUPTION_BUDGET, INFERENCE_POOL, SERVICE
from mamba_operator.objects.manifest import Manifest
from mamba_operator.render.access import KEY_FILE, key_mount, key_volume
from mamba_operator.render.context import Context, child, number
from mamba_operator.render.pod import (
    DRAIN_QUIET,
    ENDS_WHEN_TOLD,
    EVERY_ADDRESS,
    container_security,
    pod_security,
    prefix_sharing,
    probes,
    tracing,
)
from mamba_operator.render.strategic_merge import merge

START_SECONDS = 300
"""Seconds for a start. After an outage all pods of a node start at once, each with a share of the processor,
and a pod that is killed starts from the beginning. A gateway that cannot start exits by itself."""
GATEWAY_GRACE_MARGIN_SECONDS = 15
"""Seconds of the grace period beyond `drainTimeout`."""
MEMORY = "512Mi"
"""Memory request: enough for a tokenizer of 17 MiB, a million checkpoints and as many pages, and 1,024
requests in flight; docs/reference/gateway-memory.md has the sum."""
API_KEYS_MOUNT = "/run/mambaserve/api-keys"


def gateway_deployment(context: Context) -> Manifest:
    """Return the Deployment. Raises InvalidPatch when `spec.gateway.podTemplate` cannot be merged."""
    deployment = context.deployment
    return {
        **child(context, DEPLOYMENT, context.children.gateway, "gateway"),
        "spec": {
            "replicas": deployment.spec.gateway.replicas,
            "selector": {"matchLabels": names.selector(deployment.name, "gateway")},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "progressDeadlineSeconds": 600,
            "revisionHistoryLimit": 3,
            "paused": False,
            "template": _template(context),
        },
    }


def _template(context: Context) -> Manifest:
    deployment = context.deployment
    labels = names.labels(deployment.name, "gateway")
    restart = deployment.metadata.annotations.get(names.ANNOTATION_RESTART)
    base: Manifest = {
        "metadata": {
            "labels": labels,
            "annotations": {names.ANNOTATION_RESTART: restart} if restart else {},
        },
        "spec": {
            "serviceAccountName": context.children.service_account,
            "automountServiceAccountToken": True,
            "enableServiceLinks": False,
            **ENDS_WHEN_TOLD,
            "terminationGracePeriodSeconds": math.ceil(deployment.spec.rollout.drain_timeout.seconds)
            + GATEWAY_GRACE_MARGIN_SECONDS,
            "securityContext": pod_security(),
            "containers": [_container(context)],
            "volumes": _volumes(context),
            **_spread(deployment),
        },
    }
    if references := context.images.references():
        base["spec"]["imagePullSecrets"] = references
    patch = deployment.spec.gateway.pod_template or {}
    merged = merge(base, patch, "gateway.podTemplate")
    metadata = merged["metadata"] if isinstance(merged.get("metadata"), dict) else {}
    return {**merged, "metadata": {**metadata, "labels": {**(metadata.get("labels") or {}), **labels}}}


def _spread(deployment: MambaDeployment) -> dict[str, Any]:
    """Return constraints that spread several gateways over nodes, as far as there are enough nodes."""
    if deployment.spec.gateway.replicas < 2:
        return {}
    constraint = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": names.selector(deployment.name, "gateway")},
    }
    return {"topologySpreadConstraints": [constraint]}


def _container(context: Context) -> dict[str, Any]:
    deployment = context.deployment
    arguments = [
        "gateway",
        "--deployment", deployment.name,
        "--namespace", deployment.namespace,
        "--host", EVERY_ADDRESS,  # the pod's own network
        "--port", str(names.HTTP_PORT),
    ]  # fmt: skip
    mounts: list[dict[str, Any]] = [{"name": "scratch", "mountPath": "/tmp"}]  # noqa: S108 - the pod's own
    if deployment.spec.gateway.auth is not None:
        arguments += ["--api-key-file", f"{API_KEYS_MOUNT}/{names.API_KEYS_KEY}"]
        mounts.append({"name": "api-keys", "mountPath": API_KEYS_MOUNT, "readOnly": True})
    if context.key_presented:
        arguments += ["--backend-key-file", KEY_FILE]
        mounts.append(key_mount())
    if deployment.spec.gateway.inference_pool is not None:
        arguments += ["--endpoint-picker-port", str(names.ENDPOINT_PICKER_PORT)]
    return {
        "name": names.GATEWAY_CONTAINER,
        "image": deployment.spec.gateway.image or context.images.gateway,
        "command": ["mambaserve"],
        "args": arguments,
        "env": _environment(context),
        "ports": _container_ports(deployment),
        "resources": {"requests": {"cpu": "100m", "memory": MEMORY}},
        "securityContext": container_security(),
        "volumeMounts": mounts,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **_probes(),
    }


def _container_ports(deployment: MambaDeployment) -> list[dict[str, Any]]:
    ports = {names.HTTP_PORT_NAME: names.HTTP_PORT}
    if deployment.spec.gateway.inference_pool is not None:
        ports[names.ENDPOINT_PICKER_PORT_NAME] = names.ENDPOINT_PICKER_PORT
    return [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in ports.items()]


def _probes() -> dict[str, Any]:
    """Return the probes. A gateway accepts requests before engines do: it holds them or answers 503."""
    gateway_probes = probes(START_SECONDS)
    start = gateway_probes["startupProbe"]
    return {**gateway_probes, "startupProbe": {**start, "httpGet": {**start["httpGet"], "path": "/livez"}}}


def _environment(context: Context) -> list[dict[str, Any]]:
    spec = context.deployment.spec
    limits, routing = spec.gateway.limits, spec.gateway.routing
    settings = {
        "SERVED_MODEL_NAME": context.deployment.served_name,
        "MAX_IN_FLIGHT": str(limits.max_in_flight),
        "MAX_QUEUE": str(limits.max_queued),
        "QUEUE_TIMEOUT": number(limits.queue_timeout.seconds),
        "HOLD_TIMEOUT": number(limits.queue_timeout.seconds),
        "REQUEST_TIMEOUT": number(limits.request_timeout.seconds),
        "MAX_BODY_BYTES": str(limits.max_body_size.bytes),
        "DRAIN_TIMEOUT": number(spec.rollout.drain_timeout.seconds),
        "DRAIN_QUIET": number(DRAIN_QUIET),
        "PREFIX_WEIGHT": number(routing.prefix_weight),
        "LOAD_WEIGHT": number(routing.load_weight),
    }
    if context.hand_over_tokens is not None:
        settings["HAND_OVER_TOKENS"] = str(context.hand_over_tokens)
    if spec.gateway.cors_origins:
        settings["CORS_ORIGIN"] = " ".join(spec.gateway.cors_origins)
    settings |= _key_limits(limits)
    variables = [{"name": f"{names.ENV_PREFIX}{key}", "value": value} for key, value in settings.items()]
    return variables + prefix_sharing(context.deployment) + tracing(context.deployment)


def _key_limits(limits: Limits) -> dict[str, str]:
    """Return the gateway's settings for keys, without their prefix."""
    values = {}
    if limits.per_key is not None:
        limits_per_key = limits.per_key
        values = {
            "REQUESTS_PER_MINUTE": limits_per_key.requests_per_minute,
            "TOKENS_PER_MINUTE": limits_per_key.tokens_per_minute,
            "CONCURRENT_REQUESTS": limits_per_key.concurrent_requests,
        }
    settings = {name: str(value) for name, value in values.items() if value is not None}
    if limits.keys:
        settings["KEY_LIMIT"] = " ".join(_key_limit(key) for key in limits.keys)
    return settings


def _key_limit(key: NamedKeyLimits) -> str:
    values = {
        "requests": key.requests_per_minute,
        "tokens": key.tokens_per_minute,
        "concurrent": key.concurrent_requests,
        "weight": key.weight,
    }
    return f"{key.name}:" + ",".join(f"{name}={value}" for name, value in values.items() if value is not None)


def _volumes(context: Context) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = [{"name": "scratch", "emptyDir": {}}]
    auth = context.deployment.spec.gateway.auth
    if auth is not None:
        volumes.append(
            {"name": "api-keys", "secret": {"secretName": auth.secret_ref.name, "defaultMode": 0o440}}
        )
    if context.key_presented:
        volumes.append(key_volume(context))
    return volumes


def gateway_disruption_budget(context: Context) -> Manifest | None:
    """Return the disruption budget; None for a single gateway, which it could not protect."""
    if context.deployment.spec.gateway.replicas < 2:
        return None
    return {
        **child(context, DISRUPTION_BUDGET, context.children.gateway, "gateway"),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": names.selector(context.deployment.name, "gateway")},
        },
    }


def gateway_service(context: Context) -> Manifest:
    """Return the Service of the gateways; the cluster chooses its address."""
    deployment = context.deployment
    ports = [
        {
            "name": names.HTTP_PORT_NAME,
            "port": names.SERVICE_PORT,
            "targetPort": names.HTTP_PORT_NAME,
            "protocol": "TCP",
        }
    ]
    if deployment.spec.gateway.inference_pool is not None:
        ports.append(
            {
                "name": names.ENDPOINT_PICKER_PORT_NAME,
                "port": names.ENDPOINT_PICKER_PORT,
                "targetPort": names.ENDPOINT_PICKER_PORT_NAME,
                "protocol": "TCP",
                "appProtocol": "http2",
            }
        )
    return {
        **child(context, SERVICE, context.children.gateway, "gateway"),
        "spec": {
            "type": "ClusterIP",
            "selector": names.selector(deployment.name, "gateway"),
            "ports": ports,
        },
    }


def inference_pool(context: Context) -> Manifest | None:
    """Return the InferencePool; None where the spec has none."""
    deployment = context.deployment
    if deployment.spec.gateway.inference_pool is None:
        return None
    return {
        **child(context, INFERENCE_POOL, context.children.inference_pool, "gateway"),
        "spec": {
            "selector": {"matchLabels": names.selector(deployment.name, "engine")},
            "targetPorts": [{"number": names.HTTP_PORT}],
            "endpointPickerRef": {
                "group": SERVICE.group,
                "kind": SERVICE.kind,
                "name": context.children.gateway,
                "port": {"number": names.ENDPOINT_PICKER_PORT},
                # Without the picker, prompts miss their cached prefix and callers are not checked.
                "failureMode": "FailClose",
            },
        },
    }
