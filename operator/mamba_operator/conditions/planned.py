"""The condition Planned: the planner's verdict on the memory. Pure; called by `summary`."""

from dataclasses import replace

from mamba_api.v1alpha1.conditions import Reason
from mamba_api.v1alpha1.profiles import profile_in_words
from mamba_operator.conditions.chain import Chain, ConditionInputs, ConditionResult, evaluate
from mamba_operator.memory.verdict import Fits, SpecInvalid, Unknown


def nothing_may_be_changed(view: ConditionInputs) -> ConditionResult | None:
    return view.blocked


def new_strategy_is_announced(view: ConditionInputs) -> ConditionResult | None:
    if not isinstance(view.verdict, Fits) or view.plan.announcement is None:
        return None
    return ConditionResult(
        "True", Reason.STRATEGY_ANNOUNCED, f"{view.verdict.message}; {view.plan.announcement}"
    )


def new_pods_would_get_another_plan(view: ConditionInputs) -> ConditionResult | None:
    if (difference := view.plan.plan_difference) is None:
        return None
    if isinstance(view.verdict, Fits):
        return ConditionResult("True", Reason.PLAN_DIFFERS, f"{view.verdict.message}; {difference}")
    return ConditionResult("Unknown", Reason.PLAN_DIFFERS, f"engines planned for themselves; {difference}")


def plan_is_unknown(view: ConditionInputs) -> ConditionResult | None:
    if not isinstance(view.verdict, Unknown):
        return None
    return ConditionResult("Unknown", view.verdict.reason, view.verdict.message)


def engines_reported_their_plan(view: ConditionInputs) -> ConditionResult | None:
    if not isinstance(view.verdict, Fits) or not view.verdict.reported:
        return None
    return ConditionResult("True", Reason.PLAN_REPORTED, view.verdict.message)


PLANNED: Chain = (
    nothing_may_be_changed,
    new_strategy_is_announced,
    new_pods_would_get_another_plan,
    plan_is_unknown,
    engines_reported_their_plan,
)


def planned(view: ConditionInputs) -> ConditionResult:
    """Return the condition Planned. Its message names the resource profile that was used."""
    result = evaluate(
        PLANNED, view, otherwise=ConditionResult("True", Reason.PLAN_COMPUTED, view.verdict.message)
    )
    deployment = view.plan.deployment
    if isinstance(view.verdict, SpecInvalid) or deployment is None:
        return result
    profile = profile_in_words(deployment)
    return replace(result, message=f"{result.message}; {profile}") if profile else result
