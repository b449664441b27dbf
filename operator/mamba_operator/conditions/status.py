"""`summarize`: from a snapshot, the plan and what failed, to the status the object shall carry. Pure.

What the conditions say is found in `findings`. Called by `reconcile` once per pass; never writes anything.
"""

from collections.abc import Sequence
from datetime import datetime

from mamba_api import names
from mamba_api.v1alpha1 import Condition, RolloutStatus, ScalingStatus, Status
from mamba_api.v1alpha1.conditions import ConditionStatus, ConditionType, set_condition
from mamba_operator.conditions.findings import ConditionInputs, Failure, findings_of
from mamba_operator.decision.reconcile_plan import ReconcilePlan
from mamba_operator.memory.verdict import Fits
from mamba_operator.objects.manifest import Manifest
from mamba_operator.objects.recorded_status import recorded_status
from mamba_operator.objects.workload_state import workload_state
from mamba_operator.observation.snapshot import Snapshot


def summarize(
    snapshot: Snapshot, plan: ReconcilePlan, failures: Sequence[Failure], *, now: datetime
) -> Status | None:
    """The status to write; None when the object is gone or going.

    Args:
        snapshot: what was observed before anything was changed.
        plan: what was decided.
        failures: what could not be carried out.
        now: the time, with a time zone; it dates conditions that flip.
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
    for type_, finding in findings_of(view, generation).items():
        conditions = set_condition(
            conditions, type_, finding.status, finding.reason, finding.message,
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
            # While nothing may be changed, what stood there.
            "workload": plan.workload if plan.replicas is not None else old.workload,
        }
    )


def _scaling(plan: ReconcilePlan, old: ScalingStatus | None, engines: int) -> ScalingStatus | None:
    """What was decided about the number of engines; what stood there, while nothing may be changed."""
    made = plan.scaling if plan.replicas is not None else old
    return made.model_copy(update={"current": engines}) if made is not None else None


def _rollout(plan: ReconcilePlan, old: RolloutStatus | None) -> RolloutStatus | None:
    """Which revision was ready, and which was not; what stood there, while nothing may be changed."""
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
    wanted = view.engine.wanted if view.plan.replicas is None else view.plan.replicas
    return f"{view.engine.ready}/{wanted}"


def _strategy(view: ConditionInputs) -> str:
    if isinstance(view.verdict, Fits):
        return view.verdict.plan.strategy
    deployment = view.plan.deployment
    return deployment.spec.state_cache.strategy if deployment is not None else ""


def unobserved(owner: Manifest, failure: Failure, *, now: datetime) -> Status:
    """The recorded status with the reason why nothing could be seen; all that was seen before stays in it."""
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
