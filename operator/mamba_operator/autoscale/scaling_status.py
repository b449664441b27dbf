"""The number of engines in force: that of the spec, of the autoscaler, or of a wake-up by a gateway. Pure.

`status.scaling` records the number in force, so that it outlives the operator, and later decisions start from
it.
"""

from collections.abc import Mapping
from datetime import datetime

from mamba_api import names
from mamba_api.choices import Role
from mamba_api.v1alpha1 import MambaDeployment, ScalingChange, ScalingStatus, Status
from mamba_api.v1alpha1.status import HISTORY
from mamba_operator.autoscale.config import AutoscalerConfig, history_of
from mamba_operator.autoscale.scaling_record import LatestDecision
from mamba_operator.objects.manifest import Manifest
from mamba_operator.objects.recorded_status import parse_timestamp

MAX_REPLICAS = 10_000
"""Largest value of spec.replicas."""


def autoscaler_config(deployment: MambaDeployment, role: Role = "unified") -> AutoscalerConfig | None:
    """Return the autoscaler's targets; None if spec.replicas alone sets the number.

    A deployment without a range may still scale to zero: all of its engines then stop and start together.

    Args:
        deployment: the object, or the deployment of one pool.
        role: role of the engines.
    """
    spec, scaling = deployment.spec, deployment.spec.scaling
    delay = scaling.scale_down_delay.seconds
    if scaling.automatic:
        assert scaling.min_replicas is not None
        assert scaling.max_replicas is not None
        return AutoscalerConfig(
            min_replicas=scaling.min_replicas,
            max_replicas=scaling.max_replicas,
            ttft_target=scaling.ttft_target.seconds if scaling.ttft_target else None,
            tpot_target=scaling.tpot_target.seconds if scaling.tpot_target else None,
            scale_down_delay=delay,
            bypassed=role == "prefill",
            history=history_of(delay),
            start_deadline=spec.rollout.progress_deadline.seconds,
        )
    if spec.replicas == 0 or (scaling.mode == "Internal" and scaling.min_replicas == 0):
        engines = max(spec.replicas, 1)
        return AutoscalerConfig(
            min_replicas=0,
            max_replicas=engines,
            first=engines,
            scale_down_delay=delay,
            history=history_of(delay),
            start_deadline=spec.rollout.progress_deadline.seconds,
        )
    return None


def advisory_config(deployment: MambaDeployment) -> AutoscalerConfig | None:
    """Return the targets where an external autoscaler decides by the published metrics; otherwise None."""
    scaling = deployment.spec.scaling
    if scaling.mode != "External" or autoscaler_config(deployment) is not None:
        return None
    delay = scaling.scale_down_delay.seconds
    return AutoscalerConfig(
        min_replicas=1 if scaling.min_replicas is None else scaling.min_replicas,
        max_replicas=scaling.max_replicas or MAX_REPLICAS,
        scale_down_delay=delay,
        history=history_of(delay),
    )


def recorded_scaling(status: Status | None, role: Role) -> ScalingStatus | None:
    """Return the recorded decision about the engines of one role; None without any."""
    if status is None or role == "unified":
        return status.scaling if status is not None else None
    return next((pool.scaling for pool in status.pools if pool.name == role), None)


def scaling_status(
    deployment: MambaDeployment,
    old: ScalingStatus | None,
    engine: Manifest | None,
    wake: str | None,
    latest_decision: LatestDecision | None,
    now: datetime,
    *,
    role: Role = "unified",
) -> ScalingStatus | None:
    """Return the new `status.scaling`; None if spec.replicas alone sets the number.

    Args:
        deployment: the object, or the deployment of one pool.
        old: the previous status.
        engine: the engine Deployment, if it exists.
        wake: text that a gateway last wrote to request an engine.
        latest_decision: the autoscaler's last decision. It is ignored if it started from another number than
            the one in force, because it was carried out already or is out of date.
        now: the time.
        role: role of the engines.
    """
    config = autoscaler_config(deployment, role)
    if config is None:
        return None
    start = deployment.spec.replicas
    replicas_field = "spec.replicas" if role == "unified" else f"disaggregation.{role}.replicas"
    if old is None:
        return _initial_status(deployment, config, engine, wake, now, replicas_field)
    current = old.model_copy(update={"start": start})
    if start != old.start:
        return _with_change(
            current, _bounded(start, config), f"{replicas_field} was set to {start}", "spec", wake, now
        )
    if old.desired == 0 and wake is not None and wake != old.answered_wake:
        return _with_change(current, config.lowest, "a gateway holds a request", "wake", wake, now)
    if (
        latest_decision is not None
        and latest_decision.desired == old.desired
        and latest_decision.start == start
    ):
        target = _bounded(latest_decision.decision.target, config)
        if target != old.desired:
            decision = latest_decision.decision
            return _with_change(
                current, target, decision.reason, decision.binding, wake, now, latest_decision.record
            )
    if (bounded := _bounded(old.desired, config)) != old.desired:
        return _with_change(current, bounded, "the bounds were changed", "bounds", wake, now)
    return current


def _initial_status(
    deployment: MambaDeployment,
    config: AutoscalerConfig,
    engine: Manifest | None,
    wake: str | None,
    now: datetime,
    replicas_field: str,
) -> ScalingStatus:
    """Return the first status. Running engines continue, unless spec.replicas is 0.

    `wake` is the text that a gateway last wrote to request an engine, and `replicas_field` the name of the
    field that sets the number, for the reason.
    """
    start = deployment.spec.replicas
    running = (engine.get("spec") or {}).get("replicas") if engine is not None else None
    if isinstance(running, int) and start > 0:
        desired, reason = _bounded(running, config), f"{running} engines ran before"
    elif config.min_replicas == 0 and not _is_recent(wake, config, now):
        desired, reason = 0, "no request has come yet"
    else:
        desired, reason = max(_bounded(start, config), config.lowest), f"{replicas_field} is {start}"
    return ScalingStatus(
        desired=desired,
        reason=reason,
        binding="spec",
        start=start,
        last_change=now.isoformat(timespec="seconds"),
        answered_wake=wake if desired == 0 else None,
    )


def _is_recent(wake: str | None, config: AutoscalerConfig, now: datetime) -> bool:
    """Return whether a gateway requested an engine so recently that its client may still be waiting."""
    when = parse_timestamp(wake) if wake is not None else None
    return when is not None and (now - when).total_seconds() < config.scale_down_delay


def _bounded(engines: int, config: AutoscalerConfig) -> int:
    """Return the number within the bounds: zero, or at least as many as a first request starts."""
    if engines == 0 and config.min_replicas == 0:
        return 0
    return min(max(engines, config.lowest), config.max_replicas)


def _with_change(
    old: ScalingStatus,
    desired: int,
    reason: str,
    binding: str,
    wake: str | None,
    now: datetime,
    record: str = "",
) -> ScalingStatus:
    if desired == old.desired:
        return old
    when = now.isoformat(timespec="seconds")
    change = ScalingChange(time=when, before=old.desired, after=desired, reason=reason, record=record)
    return old.model_copy(
        update={
            "desired": desired,
            "reason": reason,
            "binding": binding,
            "last_change": when,
            # The wake-up of the engines that stop now is answered; a new wake-up has another text.
            "answered_wake": wake if desired == 0 else old.answered_wake,
            "history": [*old.history, change][-HISTORY:],
        }
    )


def wake_text(request: Manifest | None) -> str | None:
    """Return the time at which a gateway last requested an engine, as text; None if it is no valid time."""
    data = request.get("data") if request else None
    text = data.get(names.WAKE_KEY) if isinstance(data, Mapping) else None
    # The text of a gateway is not trusted: only a valid time has an effect.
    return text if isinstance(text, str) and len(text) <= 64 and parse_timestamp(text) is not None else None


def woken_at(request: Manifest | None) -> datetime | None:
    """Return the time at which a gateway last requested an engine; None if it is no valid time."""
    text = wake_text(request)
    return parse_timestamp(text) if text is not None else None
