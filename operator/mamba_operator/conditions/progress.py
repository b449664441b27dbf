"""The conditions Planned and Progressing: the planner's verdict, and the changes under way. Pure.

Called by `status`. `health` uses the sentences about a roll-out for the condition Degraded, too.
"""

from dataclasses import replace

from mamba_api import names
from mamba_api.v1alpha1.conditions import Reason
from mamba_api.v1alpha1.profiles import profile_in_words
from mamba_operator.conditions.chain import Chain, ConditionInputs, ConditionResult, evaluate
from mamba_operator.decision.reconcile_plan import ReconcilePlan
from mamba_operator.memory.verdict import Fits, SpecInvalid, Unknown
from mamba_operator.model.model_load import downloads_in_words
from mamba_operator.objects.pod_trouble import advised, is_draining, is_loading, replaced_failure
from mamba_operator.rollout.rollback import OF_READY_REVISIONS


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
    message = f"each engine planned its memory itself; {difference}"
    return ConditionResult("Unknown", Reason.PLAN_DIFFERS, message)


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
    """Return the condition Planned: whether there is a memory plan for the engines.

    Its message names the resource profile that was used.
    """
    result = evaluate(
        PLANNED, view, otherwise=ConditionResult("True", Reason.PLAN_COMPUTED, view.verdict.message)
    )
    deployment = view.plan.deployment
    if isinstance(view.verdict, SpecInvalid) or deployment is None:
        return result
    profile = profile_in_words(deployment)
    return replace(result, message=f"{result.message}; {profile}") if profile else result


def mode_is_plan(view: ConditionInputs) -> ConditionResult | None:
    if not view.plan_mode:
        return None
    return ConditionResult(
        "False", Reason.PLAN_MODE, "spec.mode is Plan: nothing is changed; set it to Active to serve"
    )


def model_is_downloading(view: ConditionInputs) -> ConditionResult | None:
    if (load := view.plan.load) is None:
        return None
    if load.failed and load.requeue_after is not None:
        return ConditionResult("False", Reason.DOWNLOAD_FAILED, load.message)
    return ConditionResult("True", Reason.DOWNLOADING_MODEL, load.message)


def revision_was_rolled_back(view: ConditionInputs) -> ConditionResult | None:
    if view.plan.failed is None:
        return None
    return ConditionResult("False", Reason.ROLLED_BACK, roll_back_text(view.plan))


def rollout_is_stuck(view: ConditionInputs) -> ConditionResult | None:
    if (message := stuck_text(view)) is None:
        return None
    reason = Reason.PROGRESS_DEADLINE_EXCEEDED
    return ConditionResult("False", reason, advised(reason, message))


def engines_were_just_written(view: ConditionInputs) -> ConditionResult | None:
    writes_deployment = any(apply.manifest["kind"] == "Deployment" for apply in view.plan.applies)
    if view.engine.exists and view.engine.current and not writes_deployment:
        return None
    return ConditionResult("True", Reason.ROLLING_OUT, _written_text(view))


def _written_text(view: ConditionInputs) -> str:
    return (
        f"the Deployment of the engines was just written (desired number of engines: {view.desired}): wait "
        "until they are ready"
    )


def rollout_is_queued(view: ConditionInputs) -> ConditionResult | None:
    if not view.plan.queued:
        return None
    return ConditionResult(
        "True",
        Reason.ROLLOUT_QUEUED,
        "engines are to be replaced although this object was not edited, so they wait until the roll-outs of "
        "other objects have ended (--max-rollouts of the operator) and serve meanwhile; to replace them at "
        f"once, set a new value of the annotation {names.ANNOTATION_RESTART}",
    )


def canary_is_under_way(view: ConditionInputs) -> ConditionResult | None:
    canary = view.plan.canary
    if canary is None or canary.phase == "Promoting":
        return None
    stage = (
        f"step {canary.step} of {canary.steps}, {canary.weight}% of the conversations"
        if canary.step
        else f"copies of {canary.shadow}% of the conversations, before the first of {canary.steps} steps"
    )
    text = (
        f"revision {canary.revision} is tried beside {canary.stable_revision}: {stage}, {canary.engines} "
        "candidate engines ready"
    )
    if canary.phase in ("Paused", "Waiting"):
        asks = (
            "the canary is paused, and no further step begins"
            if canary.phase == "Paused"
            else "this step lasts"
        )
        return ConditionResult(
            "False",
            Reason.CANARY_WAITS,
            f"{text}; {asks} until you resume, promote or abort the canary with `mambaserve rollout`",
        )
    return ConditionResult("True", Reason.CANARY_RUNNING, text)


def settings_are_being_sent(view: ConditionInputs) -> ConditionResult | None:
    updates = view.plan.settings_updates
    if not updates:
        return None
    detail = (
        "; ".join(update.message for update in view.plan.rejected_updates) or "the operator is sending them"
    )
    return ConditionResult(
        "True",
        Reason.SWITCHING_STRATEGY,
        f"{len(updates)} of {view.desired} engines serve with the previous settings until they accept the "
        f"new ones: {detail}",
    )


def adapters_are_changing(view: ConditionInputs) -> ConditionResult | None:
    outcomes = view.adapter_outcomes
    if not outcomes:
        return None
    left = [outcome for outcome in outcomes.values() if outcome is None or outcome.message]
    detail = "; ".join(outcome.message for outcome in left if outcome is not None)
    text = (
        f"{len(left)} of {view.desired} engines do not serve the adapters of spec.model.adapters yet: "
        f"{detail or 'they are loading the adapters'}"
        if left
        else "engines serve the adapters of spec.model.adapters, with which new engines will start as well"
    )
    return ConditionResult("True", Reason.SWITCHING_ADAPTERS, text)


def engine_is_draining(view: ConditionInputs) -> ConditionResult | None:
    if not any(is_draining(pod, view.now) for pod in view.snapshot.pods):
        return None
    message = f"an engine that is removed completes its requests before it ends{in_place_text(view)}"
    return ConditionResult("True", Reason.DRAINING, message)


def rollout_is_paused(view: ConditionInputs) -> ConditionResult | None:
    deployment = view.plan.deployment
    if view.old_engines <= 0 or deployment is None or not deployment.spec.rollout.pause:
        return None
    return ConditionResult(
        "False",
        Reason.ROLLOUT_PAUSED,
        f"{view.engine.updated} of {view.desired} engines have the new revision: the others keep the old one "
        "until you set spec.rollout.pause to false",
    )


def old_revision_runs(view: ConditionInputs) -> ConditionResult | None:
    if view.old_engines <= 0 and not view.engine.replicas > view.desired > view.engine.ready:
        return None
    old = max(view.old_engines, 0)
    return ConditionResult(
        "True",
        Reason.ROLLING_OUT,
        f"{view.engine.updated} of {view.desired} engines have the new revision; engines with an older "
        f"revision that are still to be replaced: {old}{in_place_text(view)}",
    )


def too_many_engines(view: ConditionInputs) -> ConditionResult | None:
    if view.engine.replicas <= view.desired:
        return None
    message = (
        f"{view.engine.replicas} engines run, more than the desired {view.desired}: the surplus engines "
        "complete their requests and end"
    )
    return ConditionResult("True", Reason.SCALING_DOWN, message)


def engine_downloads_the_model(view: ConditionInputs) -> ConditionResult | None:
    if view.engine.ready >= view.desired:
        return None
    message = downloads_in_words(view.snapshot.pods, view.snapshot.downloads)
    return ConditionResult("True", Reason.DOWNLOADING_MODEL, message) if message else None


def too_few_engines(view: ConditionInputs) -> ConditionResult | None:
    if view.engine.ready >= view.desired:
        return None
    failure = replaced_failure(view.snapshot.pods, view.now)
    cause = f"; one of them replaces an engine that failed: {failure}" if failure else ""
    if loading := sum(map(is_loading, view.snapshot.pods)):
        message = f"{loading} of {view.desired} engines load the model: wait until they are ready{cause}"
        return ConditionResult("True", Reason.LOADING_MODEL, message)
    message = (
        f"{view.engine.ready} of {view.desired} engines are ready, and the operator is starting the others"
        f"{cause}"
    )
    return ConditionResult("True", Reason.SCALING_UP, message)


def gateway_rolls_out(view: ConditionInputs) -> ConditionResult | None:
    gateway = view.gateway
    if gateway.exists and gateway.current and gateway.ready >= gateway.desired:
        return None
    message = (
        f"{gateway.ready} of {gateway.desired} gateways are ready, and the operator is starting the others"
        if gateway.exists
        else "the operator is creating the gateways"
    )
    return ConditionResult("True", Reason.ROLLING_OUT, message)


def key_waits_for_gateways(view: ConditionInputs) -> ConditionResult | None:
    if not view.plan.key_blocked:
        return None
    message = (
        "engines do not require the gateways' key yet, because a gateway that presents none still runs: wait "
        "until it has ended"
    )
    return ConditionResult("True", Reason.ROLLING_OUT, message)


PROGRESSING: Chain = (
    nothing_may_be_changed,
    mode_is_plan,
    model_is_downloading,
    revision_was_rolled_back,  # before all progress, because the pods will not reach the spec
    rollout_is_stuck,
    canary_is_under_way,  # before the next rule, because each step writes the candidate's Deployment
    engines_were_just_written,
    rollout_is_queued,
    settings_are_being_sent,
    adapters_are_changing,
    engine_is_draining,
    rollout_is_paused,
    old_revision_runs,  # before the next rule, because a roll-out runs more engines than are desired
    too_many_engines,
    engine_downloads_the_model,
    too_few_engines,
    gateway_rolls_out,
    key_waits_for_gateways,
)
UP_TO_DATE = ConditionResult("False", Reason.UP_TO_DATE, "every pod runs the desired revision")


def progressing(view: ConditionInputs) -> ConditionResult:
    """Return the condition Progressing: whether the children are on their way to what the spec says."""
    return evaluate(PROGRESSING, view, otherwise=UP_TO_DATE)


def roll_back_text(plan: ReconcilePlan) -> str:
    """Explain why engines were rolled back; `plan.failed` must be set."""
    failed = plan.failed
    assert failed is not None
    outcome = "was rolled back" if failed.reason in OF_READY_REVISIONS else "did not become ready"
    return (
        f"engines run revision {plan.ready_revision}, the last one that was ready, as before the change: "
        f"correct the spec, or undo the change; revision {failed.revision} {outcome}: {failed.reason}: "
        f"{failed.message}"
    )


def stuck_text(view: ConditionInputs) -> str | None:
    """Say what made no progress until its deadline, and which engines serve; None if nothing is stuck."""
    engine, gateway = view.engine, view.gateway
    # The controller's message may still refer to the revision that was rolled back. Where all engines that
    # there is room for run the desired revision, only room is missing and the roll-out is complete.
    if engine.stuck is not None and view.plan.failed is None and not view.rolled_out:
        if view.old_engines <= 0 or not engine.updated or view.plan.ready_revision is None:
            return (
                f"the roll-out of engines is stuck, and {engine.ready} of {engine.desired} engines are "
                f"ready: {engine.stuck}"
            )
        return (
            f"the roll-out of engines is stuck: {engine.stuck.removesuffix('.')}; {engine.updated} of "
            f"{engine.replicas} engines have the new revision and {view.old_engines} an older one, and all "
            "engines that are ready continue to serve"
        )
    if gateway.stuck is None:
        return None
    return (
        f"the roll-out of gateways is stuck, and {gateway.ready} of {gateway.desired} gateways are ready: "
        f"{gateway.stuck}"
    )


def in_place_text(view: ConditionInputs) -> str:
    """Describe how a roll-out continues without room for an additional engine; empty if there is room."""
    deployment = view.plan.deployment
    if view.plan.in_place:
        return (
            "; there is no room for an additional engine, so the operator removes an old one first, and "
            "requests wait at the gateway meanwhile"
        )
    if view.plan.in_place_refused:
        return (
            "; there is no room for an additional engine, and spec.rollout.maxUnavailable 0 does not allow "
            "the operator to remove an old one first: make room, or set spec.rollout.inPlaceAfter"
        )
    if view.plan.in_place_soon and deployment is not None:
        limits, rollout = deployment.spec.gateway.limits, deployment.spec.rollout
        return (
            "; there is no room for an additional engine: if there is still none after "
            f"{rollout.in_place_wait} (spec.rollout.inPlaceAfter), the operator removes an old one first; "
            f"while no engine is ready, requests wait at the gateway for {limits.queue_timeout} at most"
        )
    return ""
