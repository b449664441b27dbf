"""Findings: what each condition of a MambaDeployment says. Pure.

Conditions are decided one by one, each by a function that returns status, reason and message; Ready comes
last and sums up.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

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
from mamba_api.v1alpha1.profiles import profile_in_words
from mamba_operator.children.changes import Change
from mamba_operator.decision.reconcile_plan import ReconcilePlan
from mamba_operator.memory.verdict import (
    ModelNotServed,
    DoesNotFit,
    Fits,
    Unknown,
    MemoryVerdict,
    SpecInvalid,
)
from mamba_operator.model.model_load import downloads_in_words
from mamba_operator.objects.pod_trouble import (
    advised,
    advised_refusal,
    is_draining,
    is_loading,
    replaced_failure,
    trouble,
)
from mamba_operator.objects.workload_state import WorkloadState
from mamba_operator.observation.snapshot import Snapshot
from mamba_operator.render.revision import label_of
from mamba_operator.rollout.rollback import ERROR_RATE_ROSE, is_ready


@dataclass(frozen=True, slots=True)
class Finding:
    """One condition before it is dated."""

    status: ConditionStatus
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Failure:
    """A change that could not be made."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class ConditionInputs:
    """What the conditions are decided from."""

    snapshot: Snapshot
    plan: ReconcilePlan
    verdict: MemoryVerdict
    engine: WorkloadState
    gateway: WorkloadState
    failures: Sequence[Failure]
    now: datetime

    @property
    def plan_mode(self) -> bool:
        deployment = self.plan.deployment
        return deployment is not None and deployment.spec.mode == "Plan"

    @property
    def minimum(self) -> int:
        """Engines that have to answer before the endpoint counts as available."""
        deployment = self.plan.deployment
        return max(deployment.spec.scaling.min_replicas or 1, 1) if deployment is not None else 1

    @property
    def complete(self) -> bool:
        """Whether as many pods answer as are to at this moment: those that a roll-out adds are on top."""
        deployment, wanted = self.plan.deployment, self.plan.replicas
        if deployment is None or wanted is None:
            return False
        rolling = not self.engine.current or self.engine.replicas > self.engine.updated
        spare = deployment.spec.rollout.unavailable if rolling else 0
        engines = self.engine.ready >= max(wanted - spare, min(self.minimum, wanted))
        return engines and self.gateway.ready >= max(self.gateway.wanted, 1)

    @property
    def rolled_out(self) -> bool:
        """Whether all engines that there is room for run the wanted revision and answer."""
        name = names.Children(self.snapshot.key.name).engine
        child = self.snapshot.child("Deployment", name)
        return child is not None and is_ready(child, label_of(child), self.snapshot.pods)

    @property
    def blocked(self) -> Finding | None:
        """Why nothing may be changed, if that is so."""
        match self.verdict:
            case SpecInvalid(message):
                return Finding("False", Reason.INVALID_SPEC, message)
            case DoesNotFit(message):
                return Finding("False", Reason.PLAN_DOES_NOT_FIT, message)
            case ModelNotServed(message):
                return Finding("False", Reason.MODEL_NOT_SERVED, message)
        return None


def findings_of(view: ConditionInputs, generation: int) -> dict[ConditionType, Finding]:
    """Of all conditions, in the order in which they are written. `generation`: of the spec."""
    findings = {
        ConditionType.PLANNED: _planned(view),
        ConditionType.AVAILABLE: _available(view),
        ConditionType.PROGRESSING: _progressing(view),
        ConditionType.DEGRADED: _degraded(view),
    }
    findings[ConditionType.UP_TO_DATE] = _up_to_date(findings, view, generation)
    of_all = findings[ConditionType.UP_TO_DATE]
    findings[ConditionType.RECONCILING] = _repeated(of_all, of_all.reason not in STALLS | AS_ASKED)
    findings[ConditionType.STALLED] = _repeated(of_all, of_all.reason in STALLS)
    findings[ConditionType.READY] = _ready(findings, view)
    return findings


def _planned(view: ConditionInputs) -> Finding:
    found = _of_verdict(view)
    deployment = view.plan.deployment
    if (
        isinstance(view.verdict, SpecInvalid)
        or deployment is None
        or not (said := profile_in_words(deployment))
    ):
        return found
    return replace(found, message=f"{found.message}; {said}")


def _of_verdict(view: ConditionInputs) -> Finding:
    match view.verdict:
        case Fits(_, message, reported):
            if (announcement := view.plan.announcement) is not None:
                return Finding("True", Reason.STRATEGY_ANNOUNCED, f"{message}; {announcement}")
            if (difference := view.plan.plan_difference) is not None:
                return Finding("True", Reason.PLAN_DIFFERS, f"{message}; {difference}")
            return Finding("True", Reason.PLAN_REPORTED if reported else Reason.PLAN_COMPUTED, message)
        case Unknown(reason, message):
            if (difference := view.plan.plan_difference) is not None:
                return Finding(
                    "Unknown", Reason.PLAN_DIFFERS, f"engines planned for themselves; {difference}"
                )
            return Finding("Unknown", reason, message)
        case DoesNotFit(message):
            return Finding("False", Reason.PLAN_DOES_NOT_FIT, message)
        case ModelNotServed(message):
            return Finding("False", Reason.MODEL_NOT_SERVED, message)
        case SpecInvalid(message):
            return Finding("False", Reason.INVALID_SPEC, message)


def _available(view: ConditionInputs) -> Finding:
    engine, gateway = view.engine, view.gateway
    if engine.ready >= view.minimum and gateway.ready:
        return Finding("True", Reason.REPLICAS_AVAILABLE, f"{engine.ready} of {engine.wanted} engines answer")
    if engine.ready >= view.minimum:
        return Finding("False", Reason.GATEWAY_NOT_READY, "engines are ready and no gateway answers yet")
    if view.blocked is not None:
        return view.blocked
    if view.plan_mode:
        return Finding("False", Reason.PLAN_MODE, "spec.mode is Plan: nothing is created")
    if view.plan.replicas == 0:
        if gateway.ready:
            said = f"no engine runs; the first request wakes one{_too_late(view)}"
            return Finding("True", Reason.SCALED_TO_ZERO, said)
        return Finding("False", Reason.GATEWAY_NOT_READY, "no gateway answers yet that could wake an engine")
    if engine.ready:
        return Finding(
            "False", Reason.BELOW_MINIMUM, f"{engine.ready} of at least {view.minimum} engines answer"
        )
    return Finding("False", Reason.NO_READY_REPLICA, f"0 of {view.plan.replicas} engines answer")


def _too_late(view: ConditionInputs) -> str:
    """Say that the request which wakes an engine will not wait for it, where that was seen to be so."""
    latest, deployment = view.snapshot.latest_decision, view.plan.deployment
    start = latest.decision.memory.start_seconds if latest is not None else 0.0
    if deployment is None or start <= deployment.spec.gateway.limits.queue_timeout.seconds:
        return ""
    return (
        f" and gets 503 after {deployment.spec.gateway.limits.queue_timeout}, since engines took "
        f"{start:.0f} s to start: raise spec.gateway.limits.queueTimeout"
    )


def _progressing(view: ConditionInputs) -> Finding:
    if view.blocked is not None:
        return view.blocked
    if view.plan_mode:
        return Finding("False", Reason.PLAN_MODE, "spec.mode is Plan: nothing is changed")
    engine, gateway = view.engine, view.gateway
    if (load := view.plan.load) is not None:
        stopped = load.failed and load.requeue_after is not None
        return Finding(
            "False" if stopped else "True",
            Reason.DOWNLOAD_FAILED if stopped else Reason.DOWNLOADING_MODEL,
            load.message,
        )
    if view.plan.failed is not None:
        # Told from the first moment, and whatever else there is to do: the spec will not be what runs.
        return Finding("False", Reason.ROLLED_BACK, _rolled_back(view.plan))
    if (stuck := _stuck(view)) is not None:
        return Finding("False", Reason.PROGRESS_DEADLINE_EXCEEDED, stuck)
    wanted = view.plan.replicas or 0
    rolling = any(apply.manifest["kind"] == "Deployment" for apply in view.plan.applies)
    if rolling or not engine.exists or not engine.current:
        return Finding("True", Reason.ROLLING_OUT, f"engines asked for: {wanted}")
    if view.plan.queued:
        said = "nobody changed this object, so its engines are replaced when others have been"
        return Finding("True", Reason.ROLLOUT_QUEUED, f"{said} (--max-rollouts of the operator)")
    if view.plan.settings_updates:
        waiting = "; ".join(one.message for one in view.plan.rejected_updates) or "being told"
        return Finding(
            "True",
            Reason.SWITCHING_STRATEGY,
            f"{len(view.plan.settings_updates)} of {wanted} engines to be told: {waiting}",
        )
    if any(is_draining(pod, view.now) for pod in view.snapshot.pods):
        said = f"an engine finishes its requests before it ends{_in_place(view)}"
        return Finding("True", Reason.DRAINING, said)
    # Pods of the old revision beside enough new ones are the end of a roll-out, not a smaller scale.
    old = engine.replicas - engine.updated
    if old > 0 and view.plan.deployment is not None and view.plan.deployment.spec.rollout.pause:
        return Finding(
            "False",
            Reason.ROLLOUT_PAUSED,
            f"{engine.updated} of {wanted} engines have the new revision: the rest waits until "
            "spec.rollout.pause is false",
        )
    if old > 0 or engine.replicas > wanted > engine.ready:
        return Finding(
            "True",
            Reason.ROLLING_OUT,
            f"{engine.updated} of {wanted} engines have the new revision, {max(old, 0)} an old one"
            + _in_place(view),
        )
    if engine.replicas > wanted:
        return Finding("True", Reason.SCALING_DOWN, f"engines that run: {engine.replicas}, wanted: {wanted}")
    if engine.ready < wanted:
        if said := downloads_in_words(view.snapshot.pods, view.snapshot.downloads):
            return Finding("True", Reason.DOWNLOADING_MODEL, said)
        failure = replaced_failure(view.snapshot.pods, view.now)
        instead = f", after {failure}" if failure else ""
        loading = sum(map(is_loading, view.snapshot.pods))
        if loading:
            said = f"{loading} of {wanted} engines load the model{instead}"
            return Finding("True", Reason.LOADING_MODEL, said)
        return Finding("True", Reason.SCALING_UP, f"{engine.ready} of {wanted} engines are ready{instead}")
    if not gateway.exists or not gateway.current or gateway.ready < gateway.wanted:
        return Finding("True", Reason.ROLLING_OUT, f"{gateway.ready} of {gateway.wanted} gateways are ready")
    if view.plan.key_blocked:
        said = "engines ask gateways for a key when the last gateway without one has ended"
        return Finding("True", Reason.ROLLING_OUT, said)
    return Finding("False", Reason.UP_TO_DATE, "every pod runs the wanted revision")


def _in_place(view: ConditionInputs) -> str:
    """Say who waits for whom where there is no room for one engine more."""
    deployment = view.plan.deployment
    if view.plan.in_place:
        return "; there is no room for one more, so an old one goes first and requests wait at the gateway"
    if view.plan.in_place_refused:
        return (
            "; there is no room for one more, and spec.rollout.maxUnavailable 0 lets no old one go first: "
            "make room, or set spec.rollout.inPlaceAfter"
        )
    if view.plan.in_place_soon and deployment is not None:
        limits, rollout = deployment.spec.gateway.limits, deployment.spec.rollout
        return (
            f"; there is no room for one more: after {rollout.in_place_wait} of that "
            "(spec.rollout.inPlaceAfter) an old one goes first, and while none answers requests wait at the "
            f"gateway for {limits.queue_timeout} at most"
        )
    return ""


def _stuck(view: ConditionInputs) -> str | None:
    """Say what did not go on until its deadline, and that engines which serve are left to."""
    engine, gateway = view.engine, view.gateway
    # What the controller says of engines may still be about the revision that was taken back. And where all
    # engines that have room run the wanted revision, it is room that is missing and the roll-out is over.
    if engine.stuck is not None and view.plan.failed is None and not view.rolled_out:
        old = engine.replicas - engine.updated
        if old <= 0 or not engine.updated or view.plan.ready_revision is None:
            return f"engine: {engine.stuck}"
        said = (
            f"{engine.updated} engines have the new revision and {old} the older one: those that serve stay"
        )
        return f"engine: {engine.stuck.removesuffix('.')}; {said}"
    return f"gateway: {gateway.stuck}" if gateway.stuck is not None else None


def _rolled_back(plan: ReconcilePlan) -> str:
    failed = plan.failed
    assert failed is not None
    what = "was taken back" if failed.reason == ERROR_RATE_ROSE else "did not become ready"
    return (
        f"engines run {plan.ready_revision}, the last revision that was ready: correct the spec, or undo the "
        f"change; {failed.revision} {what}: {failed.reason}: {failed.message}"
    )


def _degraded(view: ConditionInputs) -> Finding:
    """Find the worst that is the matter; where engines went back besides, that is told with it."""
    found = _worst(view)
    if view.plan.failed is None or found.reason == Reason.ROLLED_BACK or found.status != "True":
        return found
    return replace(found, message=f"{found.message}; and {Reason.ROLLED_BACK}: {_rolled_back(view.plan)}")


def _worst(view: ConditionInputs) -> Finding:
    if view.failures:
        first = view.failures[0]
        more = f" (and {len(view.failures) - 1} more)" if len(view.failures) > 1 else ""
        return Finding("True", first.reason, first.message + more)
    if view.blocked is not None:
        return Finding("True", view.blocked.reason, view.blocked.message)
    found = trouble(view.snapshot.pods, view.now)
    if found is not None:
        return Finding("True", found.reason, found.message)
    if (load := view.plan.load) is not None and load.failed:
        return Finding("True", Reason.DOWNLOAD_FAILED, load.message)
    if load is not None and load.refused:
        return Finding("True", Reason.PODS_REFUSED, load.message)
    for which, state in (("engine", view.engine), ("gateway", view.gateway)):
        if state.refused is not None:
            return Finding("True", Reason.PODS_REFUSED, advised_refusal(f"{which}: {state.refused}"))
    if (stuck := _stuck(view)) is not None:
        return _advised(Reason.PROGRESS_DEADLINE_EXCEEDED, stuck)
    if view.plan.failed is not None:
        return Finding("True", Reason.ROLLED_BACK, _rolled_back(view.plan))
    if rejected_updates := [one.message for one in view.plan.rejected_updates if one.final]:
        return Finding("True", Reason.STRATEGY_REFUSED, "; ".join(rejected_updates))
    if view.plan.cache_kept is not None:
        return Finding("True", Reason.CACHE_KEPT, view.plan.cache_kept)
    if view.plan.not_served:
        return Finding("True", Reason.KIND_NOT_SERVED, "; ".join(view.plan.not_served))
    if (missing := view.plan.index_trouble) is not None:
        return Finding("True", Reason.PREFIX_INDEX_UNAVAILABLE, missing.message)
    if (latest := view.snapshot.latest_decision) is not None and latest.decision.blind:
        return Finding("True", Reason.METRICS_MISSING, latest.decision.blind)
    return Finding("False", Reason.AS_EXPECTED, "nothing is wrong")


def _advised(reason: Reason, message: str) -> Finding:
    return Finding("True", reason, advised(reason, message))


def _up_to_date(findings: dict[ConditionType, Finding], view: ConditionInputs, generation: int) -> Finding:
    """Whether this generation of the spec is what runs, all of it: what waits for a change waits for this."""
    degraded, progressing = findings[ConditionType.DEGRADED], findings[ConditionType.PROGRESSING]
    if view.failures or view.plan.not_served:
        return Finding("False", degraded.reason, degraded.message)
    if progressing.reason != Reason.UP_TO_DATE:
        return Finding("False", progressing.reason, progressing.message)
    if (
        any(not (one.create_only or one.change is Change.RECORDED) for one in view.plan.applies)
        or view.plan.deletes
        or view.plan.terminating
    ):
        return Finding("False", Reason.ROLLING_OUT, "objects were just written")
    return Finding("True", Reason.UP_TO_DATE, f"every pod runs generation {generation}")


def _repeated(up_to_date: Finding, applies: bool) -> Finding:
    """For tools that know these two types alone: why the spec is not what runs, if for such a reason."""
    status: ConditionStatus = "True" if up_to_date.status == "False" and applies else "False"
    return Finding(status, up_to_date.reason, up_to_date.message)


def _ready(findings: dict[ConditionType, Finding], view: ConditionInputs) -> Finding:
    """False for the first thing that keeps it from being true: a fault, then what is still under way."""
    degraded = findings[ConditionType.DEGRADED]
    available = findings[ConditionType.AVAILABLE]
    progressing = findings[ConditionType.PROGRESSING]
    serves = degraded.reason in OF_PODS and view.complete
    if degraded.status == "True" and degraded.reason not in HARMLESS and not serves:
        return Finding("False", degraded.reason, degraded.message)
    if view.plan_mode:
        return Finding("False", Reason.PLAN_MODE, "spec.mode is Plan: set Active to serve")
    if available.status != "True":
        cause = progressing if progressing.status == "True" else available
        return Finding("False", cause.reason, cause.message)
    if available.reason == Reason.SCALED_TO_ZERO:
        return Finding("True", available.reason, available.message)
    url = names.url(view.snapshot.key.name, view.snapshot.key.namespace)
    return Finding("True", Reason.SERVING, f"answers at {url}")
