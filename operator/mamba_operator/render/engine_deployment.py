"""The Deployment X-engine: how many engines of which template. Pure."""

from mamba_api import names
from mamba_operator.kinds import DEPLOYMENT
from mamba_operator.manifest import Manifest
from mamba_operator.render.context import Context, child
from mamba_operator.render.engine_pod import engine_pod_template


def engine_deployment(context: Context) -> Manifest:
    """Raises InvalidPatch when `spec.podTemplate` cannot be merged."""
    deployment = context.deployment
    rollout = deployment.spec.rollout
    return {
        **child(context, DEPLOYMENT, context.children.engine, "engine"),
        "spec": {
            "replicas": context.replicas,
            "selector": {"matchLabels": names.selector(deployment.name, "engine")},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {
                    "maxSurge": rollout.max_surge,
                    "maxUnavailable": rollout.max_unavailable,
                },
            },
            "progressDeadlineSeconds": max(int(rollout.progress_deadline.seconds), 1),
            "revisionHistoryLimit": 3,
            "template": engine_pod_template(context),
        },
    }
