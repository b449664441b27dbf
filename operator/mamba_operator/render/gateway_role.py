"""Role and RoleBinding of the gateway: it reads where engines are, and wakes its own deployment. Pure."""

from mamba_api import names
from mamba_operator.kinds import ENDPOINT_SLICE, ROLE, ROLE_BINDING
from mamba_operator.manifest import Manifest
from mamba_operator.render.context import Context, child


def gateway_role(context: Context) -> Manifest:
    """Least privilege: lists cannot be narrowed to names, the wake annotation can."""
    return {
        **child(context, ROLE, context.children.gateway, "gateway"),
        "rules": [
            {
                "apiGroups": [ENDPOINT_SLICE.group],
                "resources": [ENDPOINT_SLICE.plural],
                "verbs": ["get", "list", "watch"],
            },
            {
                "apiGroups": [names.GROUP],
                "resources": [names.PLURAL],
                "resourceNames": [context.deployment.name],
                "verbs": ["get", "patch"],
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
