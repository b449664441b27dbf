"""`summarize`: returns the status of an object from the snapshot, the plan and the failures of a pass. Pure.

Called by `reconcile` once per pass. `health` and `progress` decide four conditions; this module decides those
that summarize them: UpToDate, Reconciling, Stalled and Ready. Writes nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from mamba_api import names
from mamba_api.choices import Role
from mamba_api.v1alpha1 import (
    CanaryStatus,
    Condition,
    PlanStatus,
    PoolStatus,
    RolloutStatus,
    ScalingStatus,
    Status,
    WorkloadStatus,
)
from mamba_api.v1alpha1.conditions import (
    AS_ASKED,
    HARMLESS,
    OF_PODS,
    STALLS,
    ConditionStatus,
    ConditionType,
    Reason,
    set_condition,
)
from mamba_operator.children.child_comparison import Change
from mamba_operator.conditions.chain import ConditionInputs, ConditionResult, Failure, combined
from mamba_operator.conditions.health import available, degraded
from mamba_operator.conditions.progress import planned, progressing
from mamba_operator.decision.reconcile_plan import ReconcilePlan
from mamba_operator.memory.verdict import Fits
from mamba_operator.objects.manifest import Manifest, name_of
from mamba_operator.objects.recorded_status import WorkloadState, recorded_status, workload_state
from mamba_operator.observation.snapshot import Snapshot
from mamba_planner.hand_over import hand_over_tokens


def summarize(
    snapshot: Snapshot, plan: ReconcilePlan, failures: Sequence[Failure], *, now: datetime
) -> Status | None:
    """Return the status to write; None when the object is gone or being deleted.

    Args:
        snapshot: observed objects, before anything was changed.
        plan: the decisions of the pass.
        failures: changes that could not be made.
        now: the time, with a time zone, for conditions whose status changes.
    """
    if snapshot.owner is None or plan.verdict is None:
        return None
    gateway = workload_state(snapshot.child("Deployment", snapshot.names.gateway))
    views = {
        role: ConditionInputs(own, part, part.verdict, workload_state(own.engine), gateway, failures, now)
        for role, own, part in _parts(snapshot, plan)
        if part.verdict is not None
    }
    old = recorded_status(snapshot.owner)
    generation = int(snapshot.owner["metadata"].get("generation") or 0)
    conditions: list[Condition] = list(old.conditions)
    of_roles = {role: all_conditions(view, generation) for role, view in views.items()}
    for type_, result in combined(of_roles, _outgoing_text(snapshot, plan, gateway)).items():
        conditions = set_condition(
            conditions, type_, result.status, result.reason, result.message,
            now=now, observed_generation=generation,
        )  # fmt: skip
    unified = views.get("unified")
    outgoing = [workload_state(snapshot.of_pool(role).engine) for role in plan.outgoing]
    states = [*(view.engine for view in views.values()), *outgoing]
    engines = sum(state.replicas for state in states)
    return old.model_copy(
        update={
            "observed_generation": generation,
            "replicas": engines,
            "ready_replicas": sum(state.ready for state in states),
            "engines": _engines(list(views.values())),
            "strategy": ", ".join(dict.fromkeys(filter(None, map(_strategy, views.values())))),
            "selector": _selector(snapshot.key.name),
            "url": names.url(snapshot.key.name, snapshot.key.namespace),
            "conditions": conditions,
            "plan": _plan_status(unified) if unified is not None else None,
            "pools": _pool_statuses(views, old),
            "hand_over_tokens": hand_over_tokens(plan.deployment)
            if plan.deployment is not None
            else old.hand_over_tokens,
            "scaling": _scaling(plan, old.scaling, engines) if unified is not None else None,
            "rollout": _rollout(plan, old.rollout) if unified is not None else None,
            "canary": _canary(plan, old.canary),
            "workload": _workload(plan, old.workload) if unified is not None else None,
        }
    )


def _parts(snapshot: Snapshot, plan: ReconcilePlan) -> Iterator[tuple[Role, Snapshot, ReconcilePlan]]:
    """Yield the snapshot and the plan of each role. The plan of a pool includes the changes of the whole."""
    if not plan.pools:
        # The roles of a spec that cannot be read are unknown: those of the engines that run are shown.
        readable = plan.deployment is not None or not snapshot.roles
        roles: tuple[Role, ...] = ("unified",) if readable else snapshot.roles
        for role in roles:
            yield role, snapshot.of_pool(role), plan
        return
    for role, part in plan.pools.items():
        own = snapshot.of_pool(role)
        pods = set(map(name_of, own.pods))
        yield (
            role,
            own,
            replace(
                part,
                applies=plan.applies,
                deletes=plan.deletes,
                not_served=plan.not_served,
                terminating=plan.terminating,
                index_trouble=plan.index_trouble,
                cache_kept=plan.cache_kept,
                settings_updates=tuple(update for update in plan.settings_updates if update.pod in pods),
                rejected_updates=tuple(
                    rejected for rejected in plan.rejected_updates if rejected.update.pod in pods
                ),
            ),
        )


def _outgoing_text(snapshot: Snapshot, plan: ReconcilePlan, gateway: WorkloadState) -> str:
    """Say which engines of former roles still answer; "" if none does, or no gateway is ready."""
    ready = {role: workload_state(snapshot.of_pool(role).engine).ready for role in plan.outgoing}
    words = ", ".join(f"{count} {role}" for role, count in ready.items() if count)
    # Two pools answer only together, and a unified engine answers alone.
    answer = ready.get("unified") or (len(ready) > 1 and all(ready.values()))
    if not (answer and gateway.ready):
        return ""
    return f"engines of the former spec.disaggregation answer until the new ones are ready: {words}"


def _plan_status(view: ConditionInputs) -> PlanStatus | None:
    return view.verdict.plan if isinstance(view.verdict, Fits) else None


def _pool_statuses(views: Mapping[Role, ConditionInputs], old: Status) -> list[PoolStatus]:
    """Return the status of each pool; empty for unified engines."""
    recorded = {pool.name: pool for pool in old.pools}
    pools = []
    for role, view in views.items():
        if role == "unified":
            continue
        before = recorded.get(role)
        pools.append(
            PoolStatus(
                name=role,
                replicas=view.engine.replicas,
                ready_replicas=view.engine.ready,
                desired_replicas=view.engine.desired if view.plan.replicas is None else view.plan.replicas,
                strategy=_strategy(view),
                plan=_plan_status(view),
                rollout=_rollout(view.plan, before.rollout if before is not None else None),
                workload=_workload(view.plan, before.workload if before is not None else None),
                scaling=_scaling(
                    view.plan, before.scaling if before is not None else None, view.engine.replicas
                ),
            )
        )
    return pools


def _scaling(plan: ReconcilePlan, old: ScalingStatus | None, engines: int) -> ScalingStatus | None:
    """Return the decision about the number of engines; the recorded one while nothing may be changed."""
    scaling = plan.scaling if plan.replicas is not None else old
    return scaling.model_copy(update={"current": engines}) if scaling is not None else None


def _workload(plan: ReconcilePlan, old: WorkloadStatus | None) -> WorkloadStatus | None:
    """Return the measured traffic; the recorded one while nothing may be changed."""
    return plan.workload if plan.replicas is not None else old


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


def _canary(plan: ReconcilePlan, old: CanaryStatus | None) -> CanaryStatus | None:
    """Return the canary under way; the recorded one while nothing may be changed."""
    return plan.canary if plan.replicas is not None else old


def _engines(views: Sequence[ConditionInputs]) -> str:
    ready = sum(view.engine.ready for view in views)
    desired = sum(view.engine.desired if view.plan.replicas is None else view.plan.replicas for view in views)
    return f"{ready}/{desired}"


def _strategy(view: ConditionInputs) -> str:
    if isinstance(view.verdict, Fits):
        return view.verdict.plan.strategy
    deployment = view.plan.deployment
    return deployment.spec.state_cache.strategy if deployment is not None else ""


def unobserved(owner: Manifest, failure: Failure, *, now: datetime) -> Status:
    """Return the recorded status, with the reason in Degraded and Ready why nothing could be observed."""
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


@dataclass(frozen=True, slots=True)
class _Summarized:
    """The conditions from which Ready and other summarizing conditions follow."""

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
    """Decide whether this generation of the spec is completely written and in force."""
    if view.failures or view.plan.not_served:
        return ConditionResult("False", parts.degraded.reason, parts.degraded.message)
    if parts.progressing.reason != Reason.UP_TO_DATE:
        return ConditionResult("False", parts.progressing.reason, parts.progressing.message)
    writes = any(not (apply.create_only or apply.change is Change.RECORDED) for apply in view.plan.applies)
    if writes or view.plan.deletes or view.plan.terminating:
        message = (
            "the operator has just written objects: wait until it has checked whether they match the spec"
        )
        return ConditionResult("False", Reason.ROLLING_OUT, message)
    return ConditionResult("True", Reason.UP_TO_DATE, f"every pod runs the spec of generation {generation}")


def _repeat(up_to_date: ConditionResult, applies: bool) -> ConditionResult:
    """Return Reconciling or Stalled: true if UpToDate is False for a cause of this condition (`applies`).

    Both are for tools that do not know UpToDate.
    """
    status: ConditionStatus = "True" if up_to_date.status == "False" and applies else "False"
    return ConditionResult(status, up_to_date.reason, up_to_date.message)


def _ready(parts: _Summarized, view: ConditionInputs) -> ConditionResult:
    """Decide Ready. If it is False, it repeats the cause: trouble first, then work in progress."""
    trouble = parts.degraded
    serves = trouble.reason in OF_PODS and view.complete
    if trouble.status == "True" and trouble.reason not in HARMLESS and not serves:
        return ConditionResult("False", trouble.reason, trouble.message)
    if view.plan_mode:
        return ConditionResult(
            "False",
            Reason.PLAN_MODE,
            "spec.mode is Plan, so nothing is created or changed: set it to Active to serve",
        )
    if parts.available.status != "True":
        cause = parts.progressing if parts.progressing.status == "True" else parts.available
        return ConditionResult("False", cause.reason, cause.message)
    if parts.available.reason == Reason.SCALED_TO_ZERO:
        return ConditionResult("True", parts.available.reason, parts.available.message)
    url = names.url(view.snapshot.key.name, view.snapshot.key.namespace)
    return ConditionResult("True", Reason.SERVING, f"requests are answered at {url}")
