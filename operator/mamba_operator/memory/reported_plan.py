"""`with_report`: the verdict where engines planned for themselves and reported it. Pure; called by `plan`.

It is shown and never rendered: engines that planned for themselves are not replaced by being told the same.
"""

from mamba_api.v1alpha1 import MambaDeployment, PlanStatus
from mamba_api.v1alpha1.conditions import ConditionType, Reason, find_condition
from mamba_operator.memory.plan_verdict import PlanFits, PlanUnknown, PlanVerdict
from mamba_operator.observation.snapshot import ReportedPlan


def with_report(
    verdict: PlanVerdict, deployment: MambaDeployment, reported: ReportedPlan | None, revision: str
) -> PlanVerdict:
    """The operator's verdict, or the plan that an engine reported where the operator has none.

    A reported plan in the status of the same generation holds until an engine reports another one, so that a
    restarted operator need not fetch it first.

    Args:
        verdict: the operator's own.
        deployment: the object.
        reported: the plan that an engine reported last.
        revision: wanted revision of the engines; a report of another one is ignored.
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
