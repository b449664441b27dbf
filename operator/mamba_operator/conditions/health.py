"""The conditions Available and Degraded: whether requests are answered, and the most serious trouble.

Pure; called by `status`.
"""

from dataclasses import replace

from mamba_api.v1alpha1.conditions import Reason
from mamba_operator.conditions.chain import Chain, ConditionInputs, ConditionResult, evaluate
from mamba_operator.conditions.progress import roll_back_text, stuck_text
from mamba_operator.objects.pod_trouble import advised, advised_refusal, trouble

SEE_CAUSE = "the conditions Progressing and Degraded show the cause"
"""End of messages about missing engines and gateways."""


def enough_engines_are_ready(view: ConditionInputs) -> ConditionResult | None:
    if view.engine.ready < view.minimum:
        return None
    if view.gateway.ready:
        message = f"{view.engine.ready} of {view.engine.desired} engines are ready, and requests are answered"
        return ConditionResult("True", Reason.REPLICAS_AVAILABLE, message)
    message = f"engines are ready, but no gateway is ready yet, so no request reaches them: {SEE_CAUSE}"
    return ConditionResult("False", Reason.GATEWAY_NOT_READY, message)


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
    message = f"no engine runs, and no gateway is ready yet that could start one for a request: {SEE_CAUSE}"
    return ConditionResult("False", Reason.GATEWAY_NOT_READY, message)


def fewer_engines_than_the_minimum_are_ready(view: ConditionInputs) -> ConditionResult | None:
    if not view.engine.ready:
        return None
    role = view.snapshot.role
    scaling = "spec.scaling" if role == "unified" else f"disaggregation.{role}.scaling"
    message = (
        f"{view.engine.ready} of the {view.minimum} engines that {scaling}.minReplicas requires are ready: "
        f"{SEE_CAUSE}"
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
    """Return the condition Available: whether enough engines are ready to answer requests."""
    none_ready = (
        f"0 of {view.plan.replicas} engines are ready, so requests wait at the gateway and get 503 after "
        f"spec.gateway.limits.queueTimeout: {SEE_CAUSE}"
    )
    return evaluate(AVAILABLE, view, otherwise=ConditionResult("False", Reason.NO_READY_REPLICA, none_ready))


def _late_start_text(view: ConditionInputs) -> str:
    """Say that the first request gets 503, if engines are known to start too slowly for it; else ""."""
    latest, deployment = view.snapshot.latest_decision, view.plan.deployment
    start = latest.decision.memory.start_seconds if latest is not None else 0.0
    if deployment is None or start <= deployment.spec.gateway.limits.queue_timeout.seconds:
        return ""
    return (
        f" and gets 503 after {deployment.spec.gateway.limits.queue_timeout}, because engines took "
        f"{start:.0f} s to start: raise spec.gateway.limits.queueTimeout"
    )


def change_failed(view: ConditionInputs) -> ConditionResult | None:
    if not view.failures:
        return None
    first, *others = view.failures
    suffix = f"; further changes that failed: {len(others)}" if others else ""
    return ConditionResult("True", first.reason, first.message + suffix)


def spec_allows_no_change(view: ConditionInputs) -> ConditionResult | None:
    blocked = view.blocked
    return replace(blocked, status="True") if blocked is not None else None


def pod_has_trouble(view: ConditionInputs) -> ConditionResult | None:
    problem = trouble(view.snapshot.pods, view.now)
    return ConditionResult("True", problem.reason, problem.message) if problem is not None else None


def download_failed(view: ConditionInputs) -> ConditionResult | None:
    load = view.plan.load
    if load is None or not load.failed:
        return None
    return ConditionResult("True", Reason.DOWNLOAD_FAILED, load.message)


def pods_are_refused(view: ConditionInputs) -> ConditionResult | None:
    load = view.plan.load
    if load is not None and load.refused:
        return ConditionResult("True", Reason.PODS_REFUSED, load.message)
    for component, state in (("engine", view.engine), ("gateway", view.gateway)):
        if state.refused is not None:
            message = advised_refusal(f"{component}: {state.refused}")
            return ConditionResult("True", Reason.PODS_REFUSED, message)
    return None


def rollout_is_stuck(view: ConditionInputs) -> ConditionResult | None:
    if (message := stuck_text(view)) is None:
        return None
    reason = Reason.PROGRESS_DEADLINE_EXCEEDED
    return ConditionResult("True", reason, advised(reason, message))


def revision_was_rolled_back(view: ConditionInputs) -> ConditionResult | None:
    if view.plan.failed is None:
        return None
    return ConditionResult("True", Reason.ROLLED_BACK, roll_back_text(view.plan))


def strategy_is_refused(view: ConditionInputs) -> ConditionResult | None:
    messages = [update.message for update in view.plan.rejected_updates if update.final]
    return ConditionResult("True", Reason.STRATEGY_REFUSED, "; ".join(messages)) if messages else None


def adapter_is_refused(view: ConditionInputs) -> ConditionResult | None:
    refusals = [one.message for one in view.adapter_outcomes.values() if one is not None and one.refused]
    if not refusals:
        return None
    reason = Reason.ADAPTER_NOT_LOADED
    return ConditionResult("True", reason, advised(reason, "; ".join(refusals)))


def cache_claim_cannot_be_changed(view: ConditionInputs) -> ConditionResult | None:
    message = view.plan.cache_kept
    return ConditionResult("True", Reason.CACHE_KEPT, message) if message is not None else None


def kind_is_not_served(view: ConditionInputs) -> ConditionResult | None:
    if not view.plan.not_served:
        return None
    return ConditionResult("True", Reason.KIND_NOT_SERVED, "; ".join(view.plan.not_served))


def prefix_index_is_unavailable(view: ConditionInputs) -> ConditionResult | None:
    if (index_trouble := view.plan.index_trouble) is None:
        return None
    return ConditionResult("True", Reason.PREFIX_INDEX_UNAVAILABLE, index_trouble.message)


def autoscaler_lacks_metrics(view: ConditionInputs) -> ConditionResult | None:
    latest = view.snapshot.latest_decision
    if latest is None or not latest.decision.blind:
        return None
    return ConditionResult("True", Reason.METRICS_MISSING, latest.decision.blind)


DEGRADED: Chain = (
    change_failed,
    spec_allows_no_change,
    pod_has_trouble,
    download_failed,
    pods_are_refused,
    rollout_is_stuck,
    revision_was_rolled_back,
    strategy_is_refused,
    adapter_is_refused,
    cache_claim_cannot_be_changed,
    kind_is_not_served,
    prefix_index_is_unavailable,
    autoscaler_lacks_metrics,
)
HEALTHY = ConditionResult("False", Reason.AS_EXPECTED, "nothing is wrong: there is nothing to do")


def degraded(view: ConditionInputs) -> ConditionResult:
    """Return the condition Degraded: whether something is wrong that a person has to look at.

    Its message also mentions a roll-back if another trouble comes first.
    """
    result = evaluate(DEGRADED, view, otherwise=HEALTHY)
    if view.plan.failed is None or result.reason == Reason.ROLLED_BACK or result.status != "True":
        return result
    roll_back = f"{Reason.ROLLED_BACK}: {roll_back_text(view.plan)}"
    return replace(result, message=f"{result.message}; a second problem is {roll_back}")
