"""Pure builders of the children of a MambaDeployment. Called by `plan`.

`engine` and `gateway` build the workloads, `access` the accounts, keys and policies, `engine_pod` and `pod`
the pod templates.
"""

from collections.abc import Sequence
from dataclasses import replace

from mamba_operator.objects.manifest import Manifest, sealed
from mamba_operator.render.access import (
    gateway_role,
    gateway_role_binding,
    network_policy,
    picker_policy,
    service_account,
    wake_request,
)
from mamba_operator.render.candidate import candidate_config, candidate_deployment
from mamba_operator.render.context import Context
from mamba_operator.render.engine import (
    disruption_budget,
    engine_config,
    engine_deployment,
    engine_service,
    model_cache,
)
from mamba_operator.render.gateway import (
    gateway_deployment,
    gateway_disruption_budget,
    gateway_service,
    inference_pool,
)


def render(*contexts: Context) -> list[Manifest]:
    """Return all children except the admin Secret, in the order of writing, each with its hash.

    Args:
        *contexts: the context of the engines; for two pools, one of each.
    """
    context = _shared(contexts)
    cache, pool = model_cache(context), inference_pool(context)
    picker = picker_policy(context)
    candidate = context.candidate
    budgets = disruption_budget(context), gateway_disruption_budget(context)
    return [
        sealed(manifest)
        for manifest in (
            service_account(context),
            wake_request(context),
            gateway_role(context),
            gateway_role_binding(context),
            *map(engine_config, contexts),
            *([candidate_config(context, candidate)] if candidate else []),
            *([cache] if cache else []),
            engine_service(context),
            gateway_service(context),
            network_policy(context),
            *([picker] if picker else []),
            *(budget for budget in budgets if budget is not None),
            *([pool] if pool else []),
            *map(engine_deployment, contexts),
            *([candidate_deployment(context, candidate)] if candidate else []),
            gateway_deployment(context),
        )
    ]


def _shared(contexts: Sequence[Context]) -> Context:
    """Return the context of the children that all engines share.

    Gateways present the key as long as any engine may require it.
    """
    return replace(
        contexts[0],
        replicas=sum(context.replicas for context in contexts),
        key_presented=any(context.key_presented for context in contexts),
    )
