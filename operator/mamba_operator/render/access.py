"""Access objects: the pods' account, the gateway's role, the keys of engines, the network policies. Pure.

Engines have two keys: the admin token of the operator, and the key that they require of gateways where
`spec.gateway.auth` requires API keys of clients. Each deployment has engine keys of its own: engines never
see the keys of clients, which may be replaced at any time.
"""

import hashlib
from typing import Any

from mamba_api import names
from mamba_api.choices import Transport
from mamba_operator.objects.kinds import (
    CONFIG_MAP,
    ENDPOINT_SLICE,
    NETWORK_POLICY,
    ROLE,
    ROLE_BINDING,
    SECRET,
    SERVICE_ACCOUNT,
)
from mamba_operator.objects.manifest import Manifest
from mamba_operator.render.context import Context, child

LAST_PORT = 65535


def service_account(context: Context) -> Manifest:
    """Return the account; each deployment has its own, which separates RBAC and image pull secrets."""
    name = context.children.service_account
    return {**child(context, SERVICE_ACCOUNT, name, "gateway"), "automountServiceAccountToken": False}


def wake_request(context: Context) -> Manifest:
    """Return the empty ConfigMap into which gateways write when they need an engine, or when Redis fails.

    Gateways get an object of their own for this: write access to the MambaDeployment would let them run any
    pod as its owner.
    """
    return child(context, CONFIG_MAP, context.children.wake, "gateway")


def gateway_role(context: Context) -> Manifest:
    """Return the gateway's role. RBAC cannot restrict lists to names, but restricts writes to one object."""
    return {
        **child(context, ROLE, context.children.gateway, "gateway"),
        "rules": [
            {
                "apiGroups": [ENDPOINT_SLICE.group],
                "resources": [ENDPOINT_SLICE.plural],
                "verbs": ["list", "watch"],
            },
            {
                "apiGroups": [CONFIG_MAP.group],
                "resources": [CONFIG_MAP.plural],
                "resourceNames": [context.children.wake],
                "verbs": ["patch"],
            },
        ],
    }


def gateway_role_binding(context: Context) -> Manifest:
    """Return the binding of the role to the deployment's own account."""
    return {
        **child(context, ROLE_BINDING, context.children.gateway, "gateway"),
        "roleRef": {
            "apiGroup": ROLE.group,
            "kind": ROLE.kind,
            "name": context.children.gateway,
        },
        "subjects": [
            {
                "kind": "ServiceAccount",
                "name": context.children.service_account,
                "namespace": context.deployment.namespace,
            }
        ],
    }


def admin_secret(context: Context, token: str) -> Manifest:
    """Return the Secret with the admin token. `token` is fresh randomness of the caller and never empty."""
    return {
        **child(context, SECRET, context.admin_secret, "engine"),
        "type": "Opaque",
        "stringData": {names.ADMIN_TOKEN_KEY: token},
    }


def network_policy(context: Context) -> Manifest:
    """Return the policy that restricts who reaches engines.

    Requests may come from this deployment's gateway and, for an InferencePool, from the namespace of its
    proxy; scrapes from the configured scrapers; anything from the operator. Engines read cached states from
    each other. Egress stays open: engines download weights and publish to Redis.
    """
    owner = context.deployment.name
    gateway = {"podSelector": {"matchLabels": names.selector(owner, "gateway")}}
    operator = context.operator.peer()
    scrapers = [scraper.peer() for scraper in context.scrapers]
    proxies = _proxies(context)
    return {
        **child(context, NETWORK_POLICY, context.children.engines, "engine"),
        "spec": {
            "podSelector": {"matchLabels": names.selector(owner, "engine")},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [gateway, *proxies, operator, *scrapers], "ports": [_port(names.HTTP_PORT_NAME)]},
                {"from": [operator], "ports": [_port(names.ADMIN_PORT_NAME)]},
                *([_transfers(owner, context.transport)] if context.moves_states else []),
            ],
        },
    }


def _transfers(owner: str, transport: Transport) -> dict[str, Any]:
    """Return the rule that lets the engines of this deployment, and nobody else, read states."""
    engines = {"podSelector": {"matchLabels": names.selector(owner, "engine")}}
    first, last = names.NIXL_PORTS
    more = [{"protocol": "TCP", "port": first, "endPort": last}] if transport == "Nixl" else []
    return {"from": [engines], "ports": [_port(names.TRANSFER_PORT_NAME), *more]}


def picker_policy(context: Context) -> Manifest | None:
    """Return the policy that lets only the proxy's namespace reach the endpoint picker.

    None without an InferencePool: there is no picker then. The endpoint picker reveals the engines' key to
    any caller that presents a client's key. All other ports stay open to everybody, as without the policy.
    """
    if not (proxies := _proxies(context)):
        return None
    picker = names.ENDPOINT_PICKER_PORT
    other_ports = [
        _port(names.HTTP_PORT_NAME),  # also listed alone, for networks that do not support ranges
        {"protocol": "TCP", "port": 1, "endPort": picker - 1},
        {"protocol": "TCP", "port": picker + 1, "endPort": LAST_PORT},
        {"protocol": "UDP", "port": 1, "endPort": LAST_PORT},
    ]
    return {
        **child(context, NETWORK_POLICY, context.children.gateway, "gateway"),
        "spec": {
            "podSelector": {"matchLabels": names.selector(context.deployment.name, "gateway")},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"ports": other_ports},
                {"from": proxies, "ports": [{"protocol": "TCP", "port": picker}]},
            ],
        },
    }


def _proxies(context: Context) -> list[dict[str, Any]]:
    pool = context.deployment.spec.gateway.inference_pool
    if pool is None:
        return []
    return [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": pool.proxy_namespace}}}]


def _port(name: str) -> dict[str, Any]:
    return {"protocol": "TCP", "port": name}


VOLUME = "engine-key"
MOUNT = "/run/mambaserve/engine-key"
KEY_FILE = f"{MOUNT}/{names.ENGINE_KEY_KEY}"


def engine_key_secret(context: Context, token: str) -> Manifest:
    """Return the Secret with the key that engines require of gateways.

    The key is derived from `token`, the token of the admin port, and does not reveal it. The name of the key
    lets gateways speak for clients and read cached prefixes.
    """
    key = hashlib.sha256(f"engine key {token}".encode()).hexdigest()
    return {
        **child(context, SECRET, _secret_name(context), "engine"),
        "type": "Opaque",
        "stringData": {names.ENGINE_KEY_KEY: f"{key} {names.GATEWAY_KEY}"},
    }


def key_volume(context: Context) -> dict[str, Any]:
    """Return the volume with the engines' key, for pods that require the key or present it."""
    return {"name": VOLUME, "secret": {"secretName": _secret_name(context), "defaultMode": 0o440}}


def key_mount() -> dict[str, Any]:
    """Return the mount of the key's volume."""
    return {"name": VOLUME, "mountPath": MOUNT, "readOnly": True}


def mounts_key(pod: Any) -> bool:
    """Return whether a pod with the spec in `pod` mounts the key, to require it or to present it."""
    try:
        return any(volume["name"] == VOLUME for volume in pod["spec"].get("volumes") or ())
    except (AttributeError, KeyError, TypeError):
        return False


def _secret_name(context: Context) -> str:
    return context.children.engine_key(context.deployment.metadata.uid or "")
