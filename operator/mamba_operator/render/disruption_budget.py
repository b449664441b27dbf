"""The PodDisruptionBudget of the engines: a node drain takes one engine at a time. Pure."""

from mamba_api import names
from mamba_operator.kinds import DISRUPTION_BUDGET
from mamba_operator.manifest import Manifest
from mamba_operator.render.context import Context, child


def disruption_budget(context: Context) -> Manifest:
    """maxUnavailable, not minAvailable: the latter would block the drain of a node for a single engine."""
    return {
        **child(context, DISRUPTION_BUDGET, context.children.engine, "engine"),
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": names.selector(context.deployment.name, "engine")},
        },
    }
