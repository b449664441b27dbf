"""Builders of the children of a MambaDeployment: one kind per file, all pure. Called by `plan`."""

from mamba_operator.manifest import Manifest, sealed
from mamba_operator.render.context import Context
from mamba_operator.render.disruption_budget import disruption_budget
from mamba_operator.render.engine_config import engine_config
from mamba_operator.render.engine_deployment import engine_deployment
from mamba_operator.render.engine_service import engine_service
from mamba_operator.render.gateway_deployment import gateway_deployment
from mamba_operator.render.gateway_role import gateway_role, gateway_role_binding
from mamba_operator.render.gateway_service import gateway_service
from mamba_operator.render.model_cache import model_cache
from mamba_operator.render.network_policy import network_policy
from mamba_operator.render.service_account import service_account


def render(context: Context) -> list[Manifest]:
    """All children but the admin Secret, in the order they are applied, each with its own hash.

    Raises:
        InvalidPatch: a pod template of the spec cannot be merged.
    """
    cache = model_cache(context)
    return [
        sealed(manifest)
        for manifest in (
            service_account(context),
            gateway_role(context),
            gateway_role_binding(context),
            engine_config(context),
            *([cache] if cache else []),
            engine_service(context),
            gateway_service(context),
            network_policy(context),
            disruption_budget(context),
            engine_deployment(context),
            gateway_deployment(context),
        )
    ]
