"""Who may do what: the pods' account, the gateway's role, the engines' admin token and network. Pure."""

from typing import Any

from mamba_api import names
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
    """One account per deployment, so that RBAC and image pull secrets can be told apart."""
    name = context.children.service_account
    return {**child(context, SERVICE_ACCOUNT, name, "gateway"), "automountServiceAccountToken": False}


def wake_request(context: Context) -> Manifest:
    """Empty: what is in it is the gateway's word. An object of its own, since whoever may write to the
    MambaDeployment may run any pod as its owner."""
    return child(context, CONFIG_MAP, context.children.wake, "gateway")


def gateway_role(context: Context) -> Manifest:
    """Least privilege: lists cannot be narrowed to names, the one object it writes can."""
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
    """Binds the role to the deployment's own account."""
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
    """`token` is fresh randomness of the caller; it must not be empty."""
    return {
        **child(context, SECRET, context.admin_secret, "engine"),
        "type": "Opaque",
        "stringData": {names.ADMIN_TOKEN_KEY: token},
    }


def network_policy(context: Context) -> Manifest:
    """Requests from this deployment's gateway and, for an InferencePool, from its proxy's namespace; scrapes
    from whoever the operator was told, everything from the operator.

    Egress stays open: engines download weights and publish to Redis.
    """
    owner = context.deployment.name
    gateway = {"podSelector": {"matchLabels": names.selector(owner, "gateway")}}
    operator = context.operator.peer()
    scrapers = [scraper.peer() for scraper in context.scrapers]
    proxies = _proxies(context)
    return {
        **child(context, NETWORK_POLICY, context.children.engine, "engine"),
        "spec": {
            "podSelector": {"matchLabels": names.selector(owner, "engine")},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [gateway, *proxies, operator, *scrapers], "ports": [_port(names.HTTP_PORT_NAME)]},
                {"from": [operator], "ports": [_port(names.ADMIN_PORT_NAME)]},
            ],
        },
    }


def picker_policy(context: Context) -> Manifest | None:
    """Let the proxy's namespace alone reach the endpoint picker, which tells the engines' own key to whoever
    speaks its protocol with a client's key. All other ports are open to everybody, as without the policy.
    None without an InferencePool."""
    if not (proxies := _proxies(context)):
        return None
    picker = names.ENDPOINT_PICKER_PORT
    others = [
        _port(names.HTTP_PORT_NAME),  # alone too, for a network that knows no ranges
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
                {"ports": others},
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
