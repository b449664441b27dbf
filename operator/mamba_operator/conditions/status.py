"""`summarize`: returns the status of an object from the snapshot, the plan and the failures of a pass. Pure.

Called by `reconcile` once per pass; the conditions are decided in `summary`. Writes nothing.
"""

from collections.abc import Sequence
from datetime import datetime

from mamba_api import names
from mamba_api.v1alpha1 import Condition, RolloutStatus, ScalingStatus, Status
from mamba_api.v1alpha1.conditions import ConditionStatus, ConditionType, set_condition
from mamba_operator.conditions.chain import ConditionInputs, Failure
from mamba_operator.conditions.summary import all_conditions
from mamba_operator.decision.reconcile_plan import ReconcilePlan
from mamba_operator.memory.verdict import Fits
from mamba_operator.objects.manifest import Manifest
from mamba_operator.objects.recorded_status import recorded_status
from mamba_operator.objects.workload_state import workload_state
from mamba_operator.observation.snapshot import Snapshot


def summarize(
    snapshot: Snapshot, plan: ReconcilePlan, failures: Sequence[Failure], *, now: datetime
) -> Status | None:
    """Return the status to write; None when the object is gone or being deleted.

    Args:
        snapshot: what was observed before anything was changed.
        plan: what was decided.
        failures: changes that could not be made.
        now: the time, with a time zone; it dates conditions whose status changes.
    """
    if snapshot.owner is None or plan.verdict is None:
        return None
    children = names.Children(snapshot.key.name)
    engine = workload_state(snapshot.child("Deployment", children.engine))
    gateway = workload_state(snapshot.child("Deployment", children.gateway))
    view = ConditionInputs(snapshot, plan, plan.verdict, engine, gateway, failures, now)
    old = recorded_status(snapshot.owner)
    generation = int(snapshot.owner["metadata"].get("generation") or 0)
    conditions: list[Condition] = list(old.conditions)
    for type_, result in all_conditions(view, generation).items():
        conditions = set_condition(
            conditions, type_, result.status, result.reason, result.message,
            now=now, observed_generation=generation,
        )  # fmt: skip
    return old.model_copy(
        update={
            "observed_generation": generation,
            "replicas": engine.replicas,
            "ready_replicas": engine.ready,
            "engines": _engines(view),
            "strategy": _strategy(view),
            "selector": _selector(snapshot.key.name),
            "url": names.url(snapshot.key.name, snapshot.key.namespace),
            "conditions": conditions,
            "plan": plan.verdict.plan if isinstance(plan.verdict, Fits) else None,
            "scaling": _scaling(plan, old.scaling, engine.replicas),
            "rollout": _rollout(plan, old.rollout),
            # While nothing may be changed, the recorded workload stays.
            "workload": plan.workload if plan.replicas is not None else old.workload,
        }
    )


def _scaling(plan: ReconcilePlan, old: ScalingStatus | None, engines: int) -> ScalingStatus | None:
    """Return the decision about the number of engines; the recorded one while nothing may be changed."""
    scaling = plan.scaling if plan.replicas is not None else old
    return scaling.model_copy(update={"current": engines}) if scaling is not None else None


def _rollout(plan: ReconcilePlan, old: RolloutStatus | None) -> RolloutStatus | None:
    """Return the ready and the failed revision; the recorded ones while nothing may be changed."""
    if plan.replicas is None:
        return old
    if plan.ready_revision is None:
        return None
    failed = plan.failed
    if failed is None:
        return RolloutStatus(ready_revision=plan.ready_revision)
    return RolloutStatus(
        ready_revision=plan.ready_revision,
        failed_revision=failed.revision,
        reason=failed.reason,
        message=failed.message,
    )


def _engines(view: ConditionInputs) -> str:
    desired = view.engine.desired if view.plan.replicas is None else view.plan.replicas
    return f"{view.engine.ready}/{desired}"


def _strategy(view: ConditionInputs) -> str:
    if isinstance(view.verdict, Fits):
        return view.verdict.plan.strategy
    deployment = view.plan.deployment
    return deployment.spec.state_cache.strategy if deployment is not None else ""


def unobserved(owner: Manifest, failure: Failure, *, now: datetime) -> Status:
    """Return the recorded status with the reason why nothing could be observed in Degraded and Ready."""
    old = recorded_status(owner)
    conditions: list[Condition] = list(old.conditions)
    statuses: dict[ConditionType, ConditionStatus] = {
        ConditionType.DEGRADED: "True",
        ConditionType.READY: "False",
    }
    for type_, status in statuses.items():
        conditions = set_condition(
            conditions, type_, status, failure.reason, failure.message,
            now=now, observed_generation=int(owner["metadata"].get("generation") or 0),
        )  # fmt: skip
    return old.model_copy(update={"conditions": conditions})


def _selector(name: str) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(names.selector(name, "engine").items()))
