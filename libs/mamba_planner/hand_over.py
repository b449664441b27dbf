"""`hand_over_tokens`: the fewest tokens for which a prompt is worth a hand-over between two pools. Pure.

The operator and local mode give the number to gateways; the status of a MambaDeployment and `mambaserve plan`
show it.
"""

from mamba_api.v1alpha1 import MambaDeployment

WORTHWHILE_TOKENS = 512
"""Tokens that take about as long to compute as a state takes to travel over a fast network."""


def hand_over_tokens(deployment: MambaDeployment) -> int | None:
    """Return the fewest tokens of a prompt for a hand-over; None without disaggregation.

    It is the number of the spec, or else the planner's. States travel in whole pages, so the planner's number
    is rounded up to whole pages. A prompt of a single page has nothing to hand over.
    """
    pools = deployment.spec.disaggregation
    if pools is None:
        return None
    if pools.hand_over_tokens is not None:
        return pools.hand_over_tokens
    page = deployment.spec.engine.page_size
    return max(-(-WORTHWHILE_TOKENS // page), 2) * page
