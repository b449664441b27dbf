"""`with_report`: replaces an unknown verdict by the plan that engines reported. Pure; called by `plan`.

A reported plan is shown in the status and never rendered, so it replaces no engine that planned for itself.
"""

from mamba_api.v1alpha1 import MambaDeployment, PlanStatus
from mamba_api.v1alpha1.conditions import ConditionType, Reason, find_condition
from mamba_operator.memory.verdict import Fits, MemoryVerdict, Unknown
from mamba_operator.observation.snapshot import ReportedPlan


def with_report(
    verdict: MemoryVerdict, deployment: MambaDeployment, reported: ReportedPlan | None, revision: str
) -> MemoryVerdict:
    """Return the operator's verdict, or the plan that an engine reported where the operator has none.

    A reported plan in the status of the same generation holds until an engine reports another one, so that a
    restarted operator need not fetch it first.

    Args:
        verdict: the operator's own verdict.
        deployment: the object.
        reported: the plan that an engine reported last.
        revision: desired revision of the engines; a report of another revision is ignored.
    """
    if not isinstance(verdict, Unknown):
        return verdict
    if reported is not None and reported.revision == revision:
        return Fits(reported.plan, _message(reported.plan), reported=True)
    old = deployment.status
    planned = find_condition(old.conditions, ConditionType.PLANNED) if old is not None else None
    if (
        old is not None
        and old.plan is not None
        and planned is not None
        and planned.reason == Reason.PLAN_REPORTED
        and planned.observed_generation == deployment.metadata.generation
    ):
        return Fits(old.plan, planned.message, reported=True)
    return verdict


def _message(plan: PlanStatus) -> str:
    return (
        f"planned by an engine: {plan.strategy} with {plan.state_dtype} states: "
        f"{plan.max_running_requests} sequences of the planned lengths fit at once, {plan.slots} slots, "
        f"{plan.pages} pages; binding constraint: {plan.binding_constraint}"
    )
