"""The condition Available: whether requests are answered now. Pure; called by `summary`."""

from mamba_api.v1alpha1.conditions import Reason
from mamba_operator.conditions.chain import Chain, ConditionInputs, ConditionResult, evaluate


def enough_engines_are_ready(view: ConditionInputs) -> ConditionResult | None:
    if view.engine.ready < view.minimum:
        return None
    if view.gateway.ready:
        message = f"{view.engine.ready} of {view.engine.desired} engines are ready"
        return ConditionResult("True", Reason.REPLICAS_AVAILABLE, message)
    return ConditionResult(
        "False", Reason.GATEWAY_NOT_READY, "engines are ready, but no gateway is ready yet"
    )


def nothing_may_be_changed(view: ConditionInputs) -> ConditionResult | None:
    return view.blocked


def mode_is_plan(view: ConditionInputs) -> ConditionResult | None:
    if not view.plan_mode:
        return None
    return ConditionResult(
        "False", Reason.PLAN_MODE, "spec.mode is Plan: nothing is created; set it to Active to serve"
    )


def scaled_to_zero(view: ConditionInputs) -> ConditionResult | None:
    if view.plan.replicas != 0:
        return None
    if view.gateway.ready:
        message = f"no engine runs; the first request starts one{_late_start_text(view)}"
        return ConditionResult("True", Reason.SCALED_TO_ZERO, message)
    return ConditionResult(
        "False", Reason.GATEWAY_NOT_READY, "no engine runs, and no gateway is ready yet that could start one"
    )


def fewer_engines_than_the_minimum_are_ready(view: ConditionInputs) -> ConditionResult | None:
    if not view.engine.ready:
        return None
    message = (
        f"{view.engine.ready} of the {view.minimum} engines that spec.scaling.minReplicas requires are ready"
    )
    return ConditionResult("False", Reason.BELOW_MINIMUM, message)


AVAILABLE: Chain = (
    enough_engines_are_ready,
    nothing_may_be_changed,
    mode_is_plan,
    scaled_to_zero,
    fewer_engines_than_the_minimum_are_ready,
)


def available(view: ConditionInputs) -> ConditionResult:
    """Return the condition Available."""
    none_ready = f"0 of {view.plan.replicas} engines are ready"
    return evaluate(AVAILABLE, view, otherwise=ConditionResult("False", Reason.NO_READY_REPLICA, none_ready))


def _late_start_text(view: ConditionInputs) -> str:
    """Say that the first request will not wait for its engine, if engines are known to start too slowly."""
    latest, deployment = view.snapshot.latest_decision, view.plan.deployment
    start = latest.decision.memory.start_seconds if latest is not None else 0.0
    if deployment is None or start <= deployment.spec.gateway.limits.queue_timeout.seconds:
        return ""
    return (
        f" and gets 503 after {deployment.spec.gateway.limits.queue_timeout}, because engines took "
        f"{start:.0f} s to start: raise spec.gateway.limits.queueTimeout"
    )
