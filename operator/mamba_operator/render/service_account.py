"""The ServiceAccount of engines and gateway. Its token is mounted only where a pod asks for it. Pure."""

from mamba_operator.kinds import SERVICE_ACCOUNT
from mamba_operator.manifest import Manifest
from mamba_operator.render.context import Context, child


def service_account(context: Context) -> Manifest:
    """One account per deployment, so that RBAC and image pull secrets can be told apart."""
    name = context.children.service_account
    return {**child(context, SERVICE_ACCOUNT, name, "gateway"), "automountServiceAccountToken": False}
