"""The NetworkPolicy of the engines: who may reach requests, metrics and the admin port. Pure."""

from typing import Any

from mamba_api import names
from mamba_operator.kinds import NETWORK_POLICY
from mamba_operator.manifest import Manifest
from mamba_operator.render.context import Context, child

ANY_NAMESPACE: dict[str, Any] = {"namespaceSelector": {}}


def network_policy(context: Context) -> Manifest:
    """Requests from this deployment's gateway, scrapes from Prometheus, everything from the operator.

    Egress stays open: engines download weights and publish to Redis.
    """
    owner = context.deployment.name
    gateway = {"podSelector": {"matchLabels": names.selector(owner, "gateway")}}
    operator = {
        **ANY_NAMESPACE,
        "podSelector": {
            "matchLabels": {names.LABEL_NAME: names.APP_NAME, names.LABEL_COMPONENT: "operator"},
        },
    }
    prometheus = {
        **ANY_NAMESPACE,
        "podSelector": {"matchLabels": {names.LABEL_NAME: "prometheus"}},
    }
    return {
        **child(context, NETWORK_POLICY, context.children.engine, "engine"),
        "spec": {
            "podSelector": {"matchLabels": names.selector(owner, "engine")},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [gateway, operator, prometheus], "ports": [_port(names.HTTP_PORT_NAME)]},
                {"from": [operator], "ports": [_port(names.ADMIN_PORT_NAME)]},
            ],
        },
    }


def _port(name: str) -> dict[str, Any]:
    return {"protocol": "TCP", "port": name}
