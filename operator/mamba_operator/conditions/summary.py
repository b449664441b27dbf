"""All conditions, and those that sum others up: UpToDate, Reconciling, Stalled and Ready. Pure.

Called by `status`.
"""

from dataclasses import dataclass

from mamba_api import names
from mamba_api.v1alpha1.conditions import (
    AS_ASKED,
    HARMLESS,
    OF_PODS,
    STALLS,
    ConditionStatus,
    ConditionType,
    Reason,
)
from mamba_operator.children.changes import Change
from mamba_operator.conditions.available import available
from mamba_operator.conditions.chain import ConditionInputs, ConditionResult
from mamba_operator.conditions.degraded import degraded
from mamba_operator.conditions.planned import planned
from mamba_operator.conditions.progressing import progressing


@dataclass(frozen=True, slots=True)
class _Summarized:
    """Conditions that the summarizing ones are decided from."""

    available: ConditionResult
    progressing: ConditionResult
    degraded: ConditionResult


def all_conditions(view: ConditionInputs, generation: int) -> dict[ConditionType, ConditionResult]:
    """Return the conditions in the order in which the status lists them.

    Args:
        view: inputs of the conditions.
        generation: generation of the spec.
    """
    parts = _Summarized(available(view), progressing(view), degraded(view))
    up_to_date = _up_to_date(parts, view, generation)
    return {
        ConditionType.PLANNED: planned(view),
        ConditionType.AVAILABLE: parts.available,
        ConditionType.PROGRESSING: parts.progressing,
        ConditionType.DEGRADED: parts.degraded,
        ConditionType.UP_TO_DATE: up_to_date,
        ConditionType.RECONCILING: _repeat(up_to_date, up_to_date.reason not in STALLS | AS_ASKED),
        ConditionType.STALLED: _repeat(up_to_date, up_to_date.reason in STALLS),
        ConditionType.READY: _ready(parts, view),
    }


def _up_to_date(parts: _Summarized, view: ConditionInputs, generation: int) -> ConditionResult:
    """Decide whether this generation of the spec is completely written and runs."""
    if view.failures or view.plan.not_served:
        return ConditionResult("False", parts.degraded.reason, parts.degraded.message)
    if parts.progressing.reason != Reason.UP_TO_DATE:
        return ConditionResult("False", parts.progressing.reason, parts.progressing.message)
    writes = any(not (apply.create_only or apply.change is Change.RECORDED) for apply in view.plan.applies)
    if writes or view.plan.deletes or view.plan.terminating:
        return ConditionResult("False", Reason.ROLLING_OUT, "objects were just written")
    return ConditionResult("True", Reason.UP_TO_DATE, f"every pod runs generation {generation}")


def _repeat(up_to_date: ConditionResult, applies: bool) -> ConditionResult:
    """Return UpToDate inverted, for tools that know only Reconciling and Stalled."""
    status: ConditionStatus = "True" if up_to_date.status == "False" and applies else "False"
    return ConditionResult(status, up_to_date.reason, up_to_date.message)


def _ready(parts: _Summarized, view: ConditionInputs) -> ConditionResult:
    """Decide Ready. It repeats the first cause that makes it False: trouble, then work in progress."""
    trouble = parts.degraded
    serves = trouble.reason in OF_PODS and view.complete
    if trouble.status == "True" and trouble.reason not in HARMLESS and not serves:
        return ConditionResult("False", trouble.reason, trouble.message)
    if view.plan_mode:
        return ConditionResult("False", Reason.PLAN_MODE, "spec.mode is Plan: set it to Active to serve")
    if parts.available.status != "True":
        cause = parts.progressing if parts.progressing.status == "True" else parts.available
        return ConditionResult("False", cause.reason, cause.message)
    if parts.available.reason == Reason.SCALED_TO_ZERO:
        return ConditionResult("True", parts.available.reason, parts.available.message)
    url = names.url(view.snapshot.key.name, view.snapshot.key.namespace)
    return ConditionResult("True", Reason.SERVING, f"answers at {url}")
