"""`with_report`: what is said of a plan that engines made for themselves. Pure; called by `plan`.

It is shown and never rendered: engines that planned for themselves are not replaced by being told the same.
"""

from mamba_api.v1alpha1 import MambaDeployment, PlanStatus
from mamba_api.v1alpha1.conditions import ConditionType, Reason, find_condition
from mamba_operator.plan_verdict import PlanFits, PlanUnknown, PlanVerdict
from mamba_operator.snapshot import ReportedPlan


def with_report(
    verdict: PlanVerdict, deployment: MambaDeployment, reported: ReportedPlan | None, revision: str
) -> PlanVerdict:
    """The verdict, or what an engine told where the operator has none of its own.

    What stands in the status of the same generation is believed until an engine says otherwise, so that a new
    operator need not ask first.

    Args:
        verdict: the operator's own.
        deployment: the object.
        told: what an engine last said.
        revision: what engines shall run; what one of another revision said counts no more.
    """
    if not isinstance(verdict, PlanUnknown):
        return verdict
    if reported is not None and reported.revision == revision:
        return PlanFits(reported.plan, _message(reported.plan), reported=True)
    old = deployment.status
    planned = find_condition(old.conditions, ConditionType.PLANNED) if old is not None else None
    if (
        old is not None
        and old.plan is not None
        and planned is not None
        and planned.reason == Reason.PLAN_REPORTED
        and planned.observed_generation == deployment.metadata.generation
    ):
        return PlanFits(old.plan, planned.message, reported=True)
    return verdict


def _message(plan: PlanStatus) -> str:
    return (
        f"as an engine planned it: {plan.strategy} with {plan.state_dtype} states: "
        f"{plan.max_running_requests} sequences of the planned lengths fit at once, {plan.slots} slots, "
        f"{plan.pages} pages; what binds: {plan.binding_constraint}"
    )
