"""`pool_deployments`: the pools of a MambaDeployment, each as the MambaDeployment of one pool. Pure.

Operator and local mode plan, render and run every pool as they do a unified deployment. `spec.resources`,
`stateCache` and `workload` are the defaults of both pools; what a pool sets wins, field by field. Only
`workload.concurrency`, the number of answers at once, is no default of the prefill pool.
"""

from typing import Any

from mamba_api.choices import Role
from mamba_api.v1alpha1.base import ApiModel
from mamba_api.v1alpha1.deployment import MambaDeployment
from mamba_api.v1alpha1.engine import Workload
from mamba_api.v1alpha1.pods import Resources, Scaling
from mamba_api.v1alpha1.pools import Pool


def pool_deployments(deployment: MambaDeployment) -> dict[Role, MambaDeployment]:
    """Return the deployment of each pool by role; without disaggregation the one deployment, as unified.

    The deployment of a pool has no `spec.disaggregation`.
    """
    pools = deployment.spec.disaggregation
    if pools is None:
        return {"unified": deployment}
    return {
        "prefill": _pool_deployment(deployment, "prefill", pools.prefill),
        "decode": _pool_deployment(deployment, "decode", pools.decode),
    }


def _pool_deployment(deployment: MambaDeployment, role: Role, pool: Pool) -> MambaDeployment:
    spec = deployment.spec
    values: dict[str, Any] = {
        "replicas": pool.replicas, "scaling": pool.scaling or Scaling(), "disaggregation": None,
    }  # fmt: skip
    if pool.resources is not None:
        values["resources"] = Resources(**_fields_set(spec.resources) | _fields_set(pool.resources))
    if pool.state_cache is not None:
        values["state_cache"] = spec.state_cache.model_copy(update=_present(pool.state_cache))
    declared = spec.workload
    if declared is not None and role == "prefill":
        # An engine has far fewer prompts at once than answers.
        declared = declared.model_copy(update={"concurrency": None})
    if pool.workload is not None:
        declared = (declared or Workload()).model_copy(update=_present(pool.workload))
    values["workload"] = declared
    return deployment.model_copy(update={"spec": spec.model_copy(update=values)})


def _fields_set(part: ApiModel) -> dict[str, Any]:
    return {name: getattr(part, name) for name in part.model_fields_set}


def _present(part: ApiModel) -> dict[str, Any]:
    """Return the fields of `part` that have a value."""
    return {name: value for name, value in part if value is not None}
