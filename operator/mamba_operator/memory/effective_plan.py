"""`effective_plan`: the strategy planned for the declared workload, or one chosen for measured traffic. Pure.

A choice that was taken is an annotation of the engine Deployment: engines that are made later begin with it.
What stands in the status only led to it. It changes nothing that needs new pods.
"""

import json
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, get_args

import mamba_planner
from mamba_api import names
from mamba_api.choices import Strategy
from mamba_api.v1alpha1 import MambaDeployment, ProposedStrategy, WorkloadStatus
from mamba_operator.memory.memory_plan import PlannerInput, planned
from mamba_operator.memory.plan_pin import PinnedVerdict
from mamba_operator.memory.plan_verdict import PlanFits, PlanVerdict
from mamba_operator.objects.manifest import Manifest, annotation
from mamba_operator.workload.change import MARGIN, gained, workload_change
from mamba_operator.workload.measured_workload import MeasuredWorkload
from mamba_operator.workload.workload_status import workload_status
from mamba_planner import UnusableInput, Workload
from mamba_planner.alternative import Alternative, best_alternative
from mamba_planner.candidates import STATE_DTYPES
from mamba_planner.constraints import StateDtype


@dataclass(frozen=True, slots=True)
class StrategyChoice:
    """A strategy, and the traffic that it was chosen for."""

    strategy: Strategy
    traffic: Workload

    def annotation(self) -> str:
        """How the annotation `chosen-for` says it."""
        return json.dumps({"strategy": self.strategy, **asdict(self.traffic)})


@dataclass(frozen=True, slots=True)
class EffectivePlan:
    """The memory plan that engines are to serve with now, and what is reported about it."""

    verdict: PlanVerdict
    annotation: str | None = None
    """`chosen-for`; None where the strategy is that of the declared workload, or of the spec."""
    workload: WorkloadStatus | None = None
    """`status.workload`."""
    announcement: str | None = None
    """What running engines are to be told, and when."""
    difference: str | None = None
    """What the measured traffic would be planned as, where that needs other pods."""
    requeue_after: float | None = None
    """Seconds until time alone changes it."""


def effective_plan(
    deployment: MambaDeployment,
    pinned: PinnedVerdict,
    engine: Manifest | None,
    measured: MeasuredWorkload | None,
    now: datetime,
    *,
    tunable: bool,
) -> EffectivePlan:
    """What holds now.

    Args:
        deployment: the object.
        judged: what the planner says for the declared workload.
        engine: the engine Deployment, if there is one.
        measured: what engines measure; None = they do not, or not enough.
        now: the time, with a time zone.
        tunable: whether engines can be told a strategy at all.
    """
    old = deployment.status.workload if deployment.status is not None else None
    shown = workload_status(old, measured, now)
    spec, given, base = deployment.spec, pinned.given, pinned.verdict
    fixed = spec.workload_source == "Declared" or spec.state_cache.strategy != "Auto" or not tunable
    if fixed or given is None or not isinstance(base, PlanFits):
        return EffectivePlan(base, workload=shown)
    chosen, verdict = recorded_choice(engine), base
    if chosen is not None:
        kept = _planned_as(chosen, given, base)
        chosen, verdict = (chosen, kept) if kept is not None else (None, base)
    note = chosen.annotation() if chosen is not None else None
    if shown is None:
        return EffectivePlan(verdict, note)
    traffic = traffic_of(deployment, shown)
    plan = verdict.plan
    best = _best_alternative(given, traffic, verdict, (plan.state_dtype,))
    # Engines that went back to an older revision are left as that was.
    settled = engine is not None and annotation(engine, names.ANNOTATION_FAILED_REVISION) is None
    proposed = old.proposed if old is not None else None
    change = workload_change(proposed, best, measured=measured is not None, now=now, may_take=settled)
    if change.take and best is not None:
        taken = StrategyChoice(best.strategy, traffic)
        if (other := _planned_as(taken, given, base)) is not None:
            return EffectivePlan(other, taken.annotation(), shown)
    return EffectivePlan(
        verdict,
        note,
        shown.model_copy(update={"proposed": change.proposed}),
        _announcement(change.proposed, plan.strategy, traffic),
        _difference(_best_alternative(given, traffic, verdict, STATE_DTYPES), verdict, traffic),
        change.requeue_after,
    )


def recorded_choice(engine: Manifest | None) -> StrategyChoice | None:
    """What the Deployment notes; None where there is nothing that can be read."""
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
        and all(type(one) is int and one > 0 for one in counts)
        and isinstance(ratio, int | float)
        and 0 <= ratio <= 1
    )
    return StrategyChoice(strategy, replace(traffic, declared=True, measured=True)) if usable else None


def traffic_of(deployment: MambaDeployment, shown: WorkloadStatus) -> Workload:
    """To plan for: what was measured; what was declared or is assumed where engines do not know it.

    A declared concurrency is what one engine is to hold at least, so fewer that came take nothing from it.
    """
    declared = deployment.spec.workload
    ratio = shown.shared_prefix_ratio
    if ratio is None:
        ratio = declared.shared_prefix_ratio if declared is not None else Workload().shared_prefix_ratio
    wanted = declared.concurrency if declared is not None else None
    return Workload(
        prompt_tokens=max(shown.prompt_tokens, 1),
        output_tokens=max(shown.output_tokens, 1),
        shared_prefix_ratio=ratio,
        concurrency=max(shown.concurrency, wanted or 1),
        declared=True,
        measured=True,
    )


def _planned_as(chosen: StrategyChoice, given: PlannerInput, base: PlanFits) -> PlanFits | None:
    """The plan with that strategy and the state type that pods have; None where it does not fit."""
    state_dtype = base.plan.state_dtype
    made = planned(given, chosen.traffic)
    if not isinstance(made, PlanFits) or (made.plan.strategy, made.plan.state_dtype) != (
        chosen.strategy,
        state_dtype,
    ):
        # With reasons for what is, though the planner would choose otherwise by now.
        update = {"strategy": chosen.strategy, "state_dtype": state_dtype}
        made = planned(replace(given, settings=given.settings.model_copy(update=update)), chosen.traffic)
    if not isinstance(made, PlanFits):
        return None
    words = (
        f"chosen for the traffic that engines measured, {_traffic_text(chosen.traffic)}: {made.plan.reason}"
    )
    return replace(made, plan=made.plan.model_copy(update={"reason": words[:4096]}))


def _best_alternative(
    given: PlannerInput, traffic: Workload, now: PlanFits, state_dtypes: tuple[StateDtype, ...]
) -> Alternative | None:
    try:
        return best_alternative(
            given.model, given.settings, given.device, given.weights_bytes, traffic,
            now.plan.strategy, now.plan.state_dtype, state_dtypes=state_dtypes,
        )  # fmt: skip
    except (mamba_planner.InsufficientMemory, UnusableInput):
        return None


def _announcement(proposed: ProposedStrategy | None, now: str, traffic: Workload) -> str | None:
    if proposed is None or proposed.takes_effect is None:
        return None
    return (
        f"engines measured {_traffic_text(traffic)}, for which {proposed.strategy} is expected to do better "
        f"than {now} ({proposed.gain}): running engines are told at {proposed.takes_effect}, no pod is "
        f"replaced; to keep {now}, name it in spec.stateCache.strategy"
    )


def _difference(best: Alternative | None, now: PlanFits, traffic: Workload) -> str | None:
    if best is None or best.state_dtype == now.plan.state_dtype or best.gain < MARGIN:
        return None
    return (
        f"engines measured {_traffic_text(traffic)}, for which {best.strategy} with {best.state_dtype} "
        f"states is expected to do better ({gained(best)}); that needs new pods and is not done by itself: "
        f"set spec.stateCache.stateDtype to {best.state_dtype} to have it"
    )


def _traffic_text(traffic: Workload) -> str:
    return (
        f"prompts of {traffic.prompt_tokens:,} and outputs of {traffic.output_tokens:,} tokens, "
        f"{traffic.shared_prefix_ratio:.0%} of prompts shared, {traffic.concurrency} at once"
    )
