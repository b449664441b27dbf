"""Sentences about a roll-out that more than one condition contains. Pure.

Called by the rules of Progressing and Degraded.
"""

from mamba_operator.conditions.chain import ConditionInputs
from mamba_operator.decision.reconcile_plan import ReconcilePlan
from mamba_operator.rollout.rollback import ERROR_RATE_ROSE


def roll_back_text(plan: ReconcilePlan) -> str:
    """Explain why engines were rolled back; `plan.failed` must be set."""
    failed = plan.failed
    assert failed is not None
    outcome = "was rolled back" if failed.reason == ERROR_RATE_ROSE else "did not become ready"
    return (
        f"engines run {plan.ready_revision}, the last revision that was ready: correct the spec, or undo the "
        f"change; {failed.revision} {outcome}: {failed.reason}: {failed.message}"
    )


def stuck_text(view: ConditionInputs) -> str | None:
    """Explain what made no progress until its deadline, and which engines keep serving; None if nothing."""
    engine, gateway = view.engine, view.gateway
    # The controller's message may still refer to the revision that was rolled back. Where all engines that
    # there is room for run the desired revision, only room is missing and the roll-out is complete.
    if engine.stuck is not None and view.plan.failed is None and not view.rolled_out:
        if view.old_engines <= 0 or not engine.updated or view.plan.ready_revision is None:
            return f"engine: {engine.stuck}"
        return (
            f"engine: {engine.stuck.removesuffix('.')}; {engine.updated} of {engine.replicas} engines have "
            f"the new revision, {view.old_engines} an old one: engines that serve keep running"
        )
    return f"gateway: {gateway.stuck}" if gateway.stuck is not None else None


def in_place_text(view: ConditionInputs) -> str:
    """Explain how a roll-out goes on where there is no room for an additional engine; empty if there is."""
    deployment = view.plan.deployment
    if view.plan.in_place:
        return (
            "; there is no room for an additional engine, so an old one is removed first and requests wait "
            "at the gateway"
        )
    if view.plan.in_place_refused:
        return (
            "; there is no room for an additional engine, and spec.rollout.maxUnavailable 0 does not allow "
            "the operator to remove an old one first: make room, or set spec.rollout.inPlaceAfter"
        )
    if view.plan.in_place_soon and deployment is not None:
        limits, rollout = deployment.spec.gateway.limits, deployment.spec.rollout
        return (
            f"; there is no room for an additional engine: after waiting {rollout.in_place_wait} "
            "(spec.rollout.inPlaceAfter) an old one is removed first, and while no engine is ready requests "
            f"wait at the gateway for {limits.queue_timeout} at most"
        )
    return ""
