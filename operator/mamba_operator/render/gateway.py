"""The gateway of a deployment: its pods, the Service X that users call, and the InferencePool. Pure.

HTTPRoutes of the Gateway API can name the InferencePool, whose engines are picked by the gateway.
"""

from typing import Any

from mamba_api import names
from mamba_api.v1alpha1.gateway import Limits
from mamba_operator.objects.kinds import DEPLOYMENT, DISRUPTION_BUDGET, INFERENCE_POOL, SERVICE
from mamba_operator.objects.manifest import Manifest
from mamba_operator.render.access import KEY_FILE, key_mount, key_volume
from mamba_operator.render.context import Context, child, number
from mamba_operator.render.gateway_pod import (
    ADAPTER_NAMES_FILE,
    ADAPTER_NAMES_MOUNT,
    API_KEYS_FILE,
    GatewayPod,
    adapter_names_mount,
    adapter_names_volume,
    api_keys_mount,
    api_keys_volume,
    budget_spec,
    deployment_spec,
    service_port,
)
from mamba_operator.render.pod import DRAIN_QUIET, EVERY_ADDRESS, prefix_sharing, tracing
from mamba_settings.spec_settings import key_limit, usage_settings

MEMORY = "512Mi"
"""Memory request: enough for a tokenizer of 17 MiB, a million checkpoints and as many pages, and 1,024
requests in flight; docs/reference/gateway-memory.md has the sum."""


def gateway_deployment(context: Context) -> Manifest:
    """Return the Deployment. Raises InvalidPatch when `spec.gateway.podTemplate` cannot be merged."""
    return {
        **child(context, DEPLOYMENT, context.children.gateway, "gateway"),
        "spec": deployment_spec(_pod(context)),
    }


def _pod(context: Context) -> GatewayPod:
    deployment = context.deployment
    gateway = deployment.spec.gateway
    arguments = [
        "gateway",
        "--deployment", deployment.name,
        "--namespace", deployment.namespace,
        "--host", EVERY_ADDRESS,  # the pod's own network
        "--port", str(names.HTTP_PORT),
    ]  # fmt: skip
    mounts: list[dict[str, Any]] = []
    volumes: list[dict[str, Any]] = []
    ports = {names.HTTP_PORT_NAME: names.HTTP_PORT}
    if gateway.auth is not None:
        arguments += ["--api-key-file", API_KEYS_FILE]
        mounts.append(api_keys_mount())
        volumes.append(api_keys_volume(gateway.auth.secret_ref.name))
    if context.key_presented:
        arguments += ["--backend-key-file", KEY_FILE]
        mounts.append(key_mount())
        volumes.append(key_volume(context))
    if deployment.spec.model.has_adapters and context.key_id:
        mounts.append(adapter_names_mount())
        volumes.append(adapter_names_volume(context.children.engine))
    if gateway.inference_pool is not None:
        arguments += ["--endpoint-picker-port", str(names.ENDPOINT_PICKER_PORT)]
        ports[names.ENDPOINT_PICKER_PORT_NAME] = names.ENDPOINT_PICKER_PORT
    return GatewayPod(
        instance=deployment.name,
        service_account=context.children.service_account,
        image=gateway.image or context.images.gateway,
        pull_secrets=context.images.references(),
        replicas=gateway.replicas,
        drain_seconds=deployment.spec.rollout.drain_timeout.seconds,
        arguments=arguments,
        environment=_environment(context),
        requests={"cpu": "100m", "memory": MEMORY},
        ports=ports,
        mounts=mounts,
        volumes=volumes,
        template=gateway.pod_template or {},
        template_field="gateway.podTemplate",
        restart=deployment.metadata.annotations.get(names.ANNOTATION_RESTART),
    )


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
    if spec.model.has_adapters and context.key_id:
        # Running engines take over other adapters, and gateways follow without new pods.
        settings["ADAPTER_NAMES_FILE"] = f"{ADAPTER_NAMES_MOUNT}/{ADAPTER_NAMES_FILE}"
    elif spec.model.adapters:
        settings["ADAPTER_NAME"] = " ".join(adapter.name for adapter in spec.model.adapters)
    if context.hand_over_tokens is not None:
        settings["HAND_OVER_TOKENS"] = str(context.hand_over_tokens)
    if spec.gateway.cors_origins:
        settings["CORS_ORIGIN"] = " ".join(spec.gateway.cors_origins)
    settings |= _key_limits(limits)
    settings |= {name.upper(): value for name, value in usage_settings(spec.gateway.usage).items()}
    variables = [{"name": f"{names.ENV_PREFIX}{key}", "value": value} for key, value in settings.items()]
    return variables + prefix_sharing(context.deployment) + tracing(context.deployment)


def _key_limits(limits: Limits) -> dict[str, str]:
    """Return the environment variables of the limits of API keys, without the prefix of their names."""
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
        settings["KEY_LIMIT"] = " ".join(key_limit(key) for key in limits.keys)
    return settings


def gateway_disruption_budget(context: Context) -> Manifest | None:
    """Return the disruption budget; None for a single gateway, which it could not protect."""
    if context.deployment.spec.gateway.replicas < 2:
        return None
    return {
        **child(context, DISRUPTION_BUDGET, context.children.gateway, "gateway"),
        "spec": budget_spec(context.deployment.name),
    }


def gateway_service(context: Context) -> Manifest:
    """Return the Service of the gateways; the cluster chooses its address."""
    deployment = context.deployment
    ports = [service_port()]
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
