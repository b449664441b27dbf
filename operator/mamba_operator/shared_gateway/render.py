"""The children of a MambaGateway: its pods, their rights, the file of models, Service and HTTPRoute. Pure."""

from collections.abc import Iterable
from typing import Any

from mamba_api import names
from mamba_api.v1alpha1.mamba_gateway import MambaGateway
from mamba_operator.objects.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    ENDPOINT_SLICE,
    HTTP_ROUTE,
    NETWORK_POLICY,
    ROLE,
    ROLE_BINDING,
    SERVICE,
    SERVICE_ACCOUNT,
)
from mamba_operator.objects.manifest import Manifest, sealed
from mamba_operator.render.context import DefaultImages, number, owned
from mamba_operator.render.gateway_pod import (
    API_KEYS_FILE,
    GatewayPod,
    api_keys_mount,
    api_keys_volume,
    budget_spec,
    deployment_spec,
    service_port,
)
from mamba_operator.render.pod import DRAIN_QUIET, EVERY_ADDRESS, shared_redis
from mamba_operator.shared_gateway.candidates import ENGINE_KEYS_MOUNT, REDIS_MOUNT
from mamba_operator.shared_gateway.resolution import Resolution
from mamba_settings.spec_settings import usage_settings

MODELS_MOUNT = "/run/mambaserve/models"
ROUTED_PATH = "/v1"
"""Prefix of the paths to which an HTTPRoute leads. The metrics name models and need no key, so they stay
inside the cluster."""


def render(gateway: MambaGateway, resolution: Resolution, images: DefaultImages) -> list[Manifest]:
    """Return all children in the order of writing, each with its hash.

    Raises InvalidPatch when `spec.podTemplate` cannot be merged.
    """
    children = names.GatewayChildren(gateway.name)
    account = {
        **owned(gateway, SERVICE_ACCOUNT, children.gateway, "gateway"),
        "automountServiceAccountToken": False,
    }
    service = {
        **owned(gateway, SERVICE, children.gateway, "gateway"),
        "spec": {"type": "ClusterIP", "selector": _selector(gateway), "ports": [service_port()]},
    }
    budget = {
        **owned(gateway, DISRUPTION_BUDGET, children.gateway, "gateway"),
        "spec": budget_spec(names.instance(gateway.kind, gateway.name)),
    }
    models = [one.deployment for one in resolution.served]
    return [
        sealed(manifest)
        for manifest in (
            account,
            _role(gateway, models),
            _role_binding(gateway),
            _models(gateway, resolution),
            service,
            *([_network_policy(gateway, models)] if models else []),
            *([budget] if gateway.spec.replicas > 1 else []),
            *_http_routes(gateway),
            {
                **owned(gateway, DEPLOYMENT, children.gateway, "gateway"),
                "spec": deployment_spec(_pod(gateway, resolution, images)),
            },
        )
    ]


def _selector(gateway: MambaGateway) -> dict[str, str]:
    return names.selector(names.instance(gateway.kind, gateway.name), "gateway")


def _role(gateway: MambaGateway, models: Iterable[str]) -> Manifest:
    """Return the role: to find engines, and to request one where the number of engines is zero."""
    rules: list[dict[str, Any]] = [
        {
            "apiGroups": [ENDPOINT_SLICE.group],
            "resources": [ENDPOINT_SLICE.plural],
            "verbs": ["list", "watch"],
        }
    ]
    # A rule without names would hold for every ConfigMap.
    if wakes := sorted(names.Children(model).wake for model in models):
        rules.append(
            {
                "apiGroups": [CONFIG_MAP.group],
                "resources": [CONFIG_MAP.plural],
                "resourceNames": wakes,
                "verbs": ["patch"],
            }
        )
    return {**owned(gateway, ROLE, names.GatewayChildren(gateway.name).gateway, "gateway"), "rules": rules}


def _role_binding(gateway: MambaGateway) -> Manifest:
    name = names.GatewayChildren(gateway.name).gateway
    return {
        **owned(gateway, ROLE_BINDING, name, "gateway"),
        "roleRef": {"apiGroup": ROLE.group, "kind": ROLE.kind, "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": gateway.namespace}],
    }


def _models(gateway: MambaGateway, resolution: Resolution) -> Manifest:
    """Return the ConfigMap with the file of models, which running gateways read again when it changes."""
    return {
        **owned(gateway, CONFIG_MAP, names.GatewayChildren(gateway.name).models, "gateway"),
        "data": {names.MODELS_KEY: resolution.document.json_text()},
    }


def _network_policy(gateway: MambaGateway, models: Iterable[str]) -> Manifest:
    """Return the policy that lets the gateways reach the engines, beside the deployments' own policies."""
    engines = {
        "matchLabels": {names.LABEL_NAME: names.APP_NAME, names.LABEL_COMPONENT: "engine"},
        "matchExpressions": [{"key": names.LABEL_INSTANCE, "operator": "In", "values": sorted(models)}],
    }
    source = {"podSelector": {"matchLabels": _selector(gateway)}}
    port = {"protocol": "TCP", "port": names.HTTP_PORT_NAME}
    return {
        **owned(gateway, NETWORK_POLICY, names.GatewayChildren(gateway.name).engines, "gateway"),
        "spec": {
            "podSelector": engines,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [source], "ports": [port]}],
        },
    }


def _http_routes(gateway: MambaGateway) -> list[Manifest]:
    route = gateway.spec.http_route
    if route is None:
        return []
    name = names.GatewayChildren(gateway.name).gateway
    return [
        {
            **owned(gateway, HTTP_ROUTE, name, "gateway"),
            "spec": {
                "parentRefs": [parent.manifest() for parent in route.parent_refs],
                **({"hostnames": list(route.hostnames)} if route.hostnames else {}),
                "rules": [
                    {
                        "matches": [{"path": {"type": "PathPrefix", "value": ROUTED_PATH}}],
                        "backendRefs": [{"name": name, "port": names.SERVICE_PORT}],
                    }
                ],
            },
        }
    ]


def _pod(gateway: MambaGateway, resolution: Resolution, images: DefaultImages) -> GatewayPod:
    spec, children = gateway.spec, names.GatewayChildren(gateway.name)
    arguments = [
        "gateway",
        "--models-file", f"{MODELS_MOUNT}/{names.MODELS_KEY}",
        "--namespace", gateway.namespace,
        "--host", EVERY_ADDRESS,  # the pod's own network
        "--port", str(names.HTTP_PORT),
    ]  # fmt: skip
    # A directory and not a single file, which the kubelet would never bring up to date.
    volumes: list[dict[str, Any]] = [{"name": "models", "configMap": {"name": children.models}}]
    mounts = [{"name": "models", "mountPath": MODELS_MOUNT, "readOnly": True}]
    if spec.auth is not None:
        arguments += ["--api-key-file", API_KEYS_FILE]
        mounts.append(api_keys_mount())
        volumes.append(api_keys_volume(spec.auth.secret_ref.name))
    keys = [(one.engine_key, names.ENGINE_KEY_KEY, one.deployment) for one in resolution.served]
    redis = [(one.redis, names.REDIS_URL_KEY, one.deployment) for one in resolution.served]
    for volume, path, secrets in (
        ("engine-keys", ENGINE_KEYS_MOUNT, keys),
        ("redis", REDIS_MOUNT, redis),
    ):
        if sources := _sources(secrets):
            volumes.append({"name": volume, "projected": {"sources": sources, "defaultMode": 0o440}})
            mounts.append({"name": volume, "mountPath": path, "readOnly": True})
    settings = {
        "MAX_BODY_BYTES": str(spec.max_body_size.bytes),
        "DRAIN_TIMEOUT": number(spec.drain_timeout.seconds),
        "DRAIN_QUIET": number(DRAIN_QUIET),
        **({"CORS_ORIGIN": " ".join(spec.cors_origins)} if spec.cors_origins else {}),
        **{name.upper(): value for name, value in usage_settings(spec.usage).items()},
    }
    instance = names.instance(gateway.kind, gateway.name)
    environment = [{"name": f"{names.ENV_PREFIX}{key}", "value": value} for key, value in settings.items()]
    if spec.redis is not None:
        # The instance, since a MambaDeployment of the same name has a scope of its own.
        environment += shared_redis(spec.redis, f"{gateway.namespace}/{instance}")
    return GatewayPod(
        instance=instance,
        service_account=children.gateway,
        image=spec.image or images.gateway,
        pull_secrets=images.references(),
        replicas=spec.replicas,
        drain_seconds=spec.drain_timeout.seconds,
        arguments=arguments,
        environment=environment,
        requests={"cpu": str(spec.resources.cpu), "memory": str(spec.resources.memory)},
        ports={names.HTTP_PORT_NAME: names.HTTP_PORT},
        mounts=mounts,
        volumes=volumes,
        template=spec.pod_template or {},
        restart=gateway.metadata.annotations.get(names.ANNOTATION_RESTART),
    )


def _sources(secrets: Iterable[tuple[str | None, str, str]]) -> list[dict[str, Any]]:
    """Return the sources of a volume with one file for each deployment, from (Secret, key in it, file)."""
    return [
        {"secret": {"name": secret, "items": [{"key": key, "path": file}]}}
        for secret, key, file in sorted(secrets, key=lambda item: item[2])
        if secret is not None
    ]
