"""`strategy_in_force`: the strategy for the declared workload, or one chosen for measured traffic. Pure.

Called by `plan`. A choice is recorded as an annotation of the engine Deployment, and engines that are created
later start with it. The status shows the choice beforehand, as a proposal. A choice never requires new pods.
"""

import json
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, get_args

import mamba_planner
from mamba_api import names
from mamba_api.choices import Role, Strategy
from mamba_api.v1alpha1 import MambaDeployment, ProposedStrategy, WorkloadStatus
from mamba_operator.memory.pin import PinnedVerdict
from mamba_operator.memory.verdict import Fits, MemoryVerdict, PlannerInput, plan_engine_memory
from mamba_operator.objects.manifest import Manifest, annotation
from mamba_operator.objects.recorded_status import recorded_traffic
from mamba_operator.workload.change import MARGIN, gained, workload_change
from mamba_operator.workload.measured_workload import MeasuredWorkload
from mamba_operator.workload.workload_status import workload_status
from mamba_planner import UnusableInput, Workload
from mamba_planner.candidates import STATE_DTYPES
from mamba_planner.constraints import StateDtype
from mamba_planner.engine_plan import Alternative, best_alternative

MAX_REASON = 4096
"""Characters of `status.plan.reason`."""


@dataclass(frozen=True, slots=True)
class StrategyChoice:
    """A strategy for the state cache that was chosen, and the traffic that it was chosen for."""

    strategy: Strategy
    traffic: Workload

    def annotation(self) -> str:
        """Return the value of the annotation `chosen-for`."""
        return json.dumps({"strategy": self.strategy, **asdict(self.traffic)})


@dataclass(frozen=True, slots=True)
class StrategyInForce:
    """The memory plan with which engines serve now, and what the status says about it."""

    verdict: MemoryVerdict
    annotation: str | None = None
    """Value of the annotation `chosen-for`; None where the declared workload, or the spec, decides the
    strategy."""
    workload: WorkloadStatus | None = None
    """Value of `status.workload`."""
    announcement: str | None = None
    """Message about the strategy that running engines will switch to, and when."""
    difference: str | None = None
    """Message about a better plan for the measured traffic that needs new pods."""
    requeue_after: float | None = None
    """Seconds until the strategy in force changes by time alone; None = it does not."""


def strategy_in_force(
    deployment: MambaDeployment,
    pinned: PinnedVerdict,
    engine: Manifest | None,
    measured: MeasuredWorkload | None,
    now: datetime,
    *,
    tunable: bool,
    role: Role = "unified",
) -> StrategyInForce:
    """Return the strategy in force.

    Args:
        deployment: the object, or the deployment of one pool.
        pinned: the planner's verdict for the declared workload.
        engine: the engine Deployment, if it exists.
        measured: the workload that engines measure; None = they measure too little, or nothing.
        now: the time, with a time zone.
        tunable: whether the operator can change the strategy of running engines.
        role: role of the engines.
    """
    old = recorded_traffic(deployment.status, role)
    without_traffic = old is None and measured is None
    workload = None if without_traffic else workload_status(old, measured, now)
    spec, source, base = deployment.spec, pinned.planner_input, pinned.verdict
    fixed = spec.workload_source == "Declared" or spec.state_cache.strategy != "Auto" or not tunable
    if fixed or source is None or not isinstance(base, Fits):
        return StrategyInForce(base, workload=workload)
    choice, verdict = _choice_in_force(engine, source, base)
    recorded = choice.annotation() if choice is not None else None
    if workload is None:
        return StrategyInForce(verdict, recorded)
    traffic = traffic_of(deployment, workload)
    plan = verdict.plan
    best = _best_alternative(source, traffic, verdict, (plan.state_dtype,))
    # While engines are rolled back to an older revision, they keep the strategy of that revision.
    may_take = engine is not None and annotation(engine, names.ANNOTATION_FAILED_REVISION) is None
    proposed = old.proposed if old is not None else None
    change = workload_change(proposed, best, measured=measured is not None, now=now, may_take=may_take)
    if change.take and best is not None:
        new_choice = StrategyChoice(best.strategy, traffic)
        if (new_verdict := _verdict_of(new_choice, source, base)) is not None:
            return StrategyInForce(new_verdict, new_choice.annotation(), workload)
    return StrategyInForce(
        verdict,
        recorded,
        workload.model_copy(update={"proposed": change.proposed}),
        _announcement(change.proposed, plan.strategy, traffic),
        _difference(_best_alternative(source, traffic, verdict, STATE_DTYPES), verdict, traffic),
        change.requeue_after,
    )


def _choice_in_force(
    engine: Manifest | None, source: PlannerInput, base: Fits
) -> tuple[StrategyChoice | None, Fits]:
    """Return the recorded choice and its plan; None and `base` if there is none, or it does not fit."""
    choice = recorded_choice(engine)
    verdict = _verdict_of(choice, source, base) if choice is not None else None
    return (choice, verdict) if verdict is not None else (None, base)


def recorded_choice(engine: Manifest | None) -> StrategyChoice | None:
    """Return the choice in the annotation of the engine Deployment; None where no valid one is recorded."""
    text = annotation(engine, names.ANNOTATION_CHOSEN_FOR) if engine is not None else None
    try:
        recorded: Any = json.loads(text) if text is not None else None
        strategy = recorded.pop("strategy")
        traffic = Workload(**recorded)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    counts = (traffic.prompt_tokens, traffic.output_tokens, traffic.concurrency)
    ratio = traffic.shared_prefix_ratio
    usable = (
        strategy in get_args(Strategy)
        and all(type(count) is int and count > 0 for count in counts)
        and isinstance(ratio, int | float)
        and 0 <= ratio <= 1
    )
    return StrategyChoice(strategy, replace(traffic, declared=True, measured=True)) if usable else None


def traffic_of(deployment: MambaDeployment, measured: WorkloadStatus) -> Workload:
    """Return the workload to plan for: the measured workload, completed by the declared one or by defaults.

    A declared concurrency is the least that one engine has to hold, so a lower measured one does not reduce
    it.
    """
    declared = deployment.spec.workload
    ratio = measured.shared_prefix_ratio
    if ratio is None:
        ratio = declared.shared_prefix_ratio if declared is not None else Workload().shared_prefix_ratio
    min_concurrency = declared.concurrency if declared is not None else None
    return Workload(
        prompt_tokens=max(measured.prompt_tokens, 1),
        output_tokens=max(measured.output_tokens, 1),
        shared_prefix_ratio=ratio,
        concurrency=max(measured.concurrency, min_concurrency or 1),
        declared=True,
        measured=True,
    )


def _verdict_of(choice: StrategyChoice, source: PlannerInput, base: Fits) -> Fits | None:
    """Return the plan with the chosen strategy and the pods' state type; None where it does not fit."""
    state_dtype = base.plan.state_dtype
    verdict = plan_engine_memory(source, choice.traffic)
    if not isinstance(verdict, Fits) or (verdict.plan.strategy, verdict.plan.state_dtype) != (
        choice.strategy,
        state_dtype,
    ):
        # The planner would choose another strategy by now, so the recorded one is planned explicitly.
        update = {"strategy": choice.strategy, "state_dtype": state_dtype}
        fixed = replace(source, settings=source.settings.model_copy(update=update))
        verdict = plan_engine_memory(fixed, choice.traffic)
    if not isinstance(verdict, Fits):
        return None
    reason = (
        f"the strategy was chosen for the traffic that engines measured, {_traffic_text(choice.traffic)}: "
        f"{verdict.plan.reason}"
    )
    return replace(verdict, plan=verdict.plan.model_copy(update={"reason": reason[:MAX_REASON]}))


def _best_alternative(
    source: PlannerInput, traffic: Workload, now: Fits, state_dtypes: tuple[StateDtype, ...]
) -> Alternative | None:
    try:
        return best_alternative(
            source.model, source.settings, source.device, source.weights_bytes, traffic,
            now.plan.strategy, now.plan.state_dtype, state_dtypes=state_dtypes,
        )  # fmt: skip
    except (mamba_planner.InsufficientMemory, UnusableInput):
        return None


def _announcement(proposed: ProposedStrategy | None, now: str, traffic: Workload) -> str | None:
    if proposed is None or proposed.takes_effect is None:
        return None
    return (
        f"engines measured {_traffic_text(traffic)}; for this traffic, {proposed.strategy} is expected to "
        f"perform better than {now} ({proposed.gain}): running engines switch to it at "
        f"{proposed.takes_effect}, and no pod is replaced; to keep {now}, set spec.stateCache.strategy to "
        f"{now}"
    )


def _difference(best: Alternative | None, now: Fits, traffic: Workload) -> str | None:
    if best is None or best.state_dtype == now.plan.state_dtype or best.gain < MARGIN:
        return None
    return (
        f"engines measured {_traffic_text(traffic)}; for this traffic, {best.strategy} with "
        f"{best.state_dtype} states is expected to perform better ({gained(best)}); the operator does not "
        "change the state type "
        f"by itself, because that needs new pods: set spec.stateCache.stateDtype to {best.state_dtype}"
    )


def _traffic_text(traffic: Workload) -> str:
    return (
        f"prompts of {traffic.prompt_tokens:,} and outputs of {traffic.output_tokens:,} tokens, "
        f"{traffic.shared_prefix_ratio:.0%} of prompts shared, {traffic.concurrency} at once"
    )
