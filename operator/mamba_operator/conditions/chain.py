"""How the result of a condition is found: by a chain of rules, and from the results of two pools. Pure.

`health` and `progress` hold the rules of two conditions each: one function per rule, and for each condition a
tuple of them in order of precedence. `status` evaluates the rules for the engines of each role. Requests need
an engine of each pool, so `combined` takes the result of the worst pool.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from mamba_api.choices import Role
from mamba_api.v1alpha1.conditions import ConditionStatus, ConditionType, Reason
from mamba_operator.decision.reconcile_plan import ReconcilePlan
from mamba_operator.memory.verdict import DoesNotFit, MemoryVerdict, ModelNotServed, SpecInvalid
from mamba_operator.objects.manifest import label_of
from mamba_operator.objects.recorded_status import WorkloadState
from mamba_operator.observation.snapshot import Snapshot
from mamba_operator.rollout.adapter_outcome import AdapterOutcome
from mamba_operator.rollout.rollback import is_ready


@dataclass(frozen=True, slots=True)
class ConditionResult:
    """The status, reason and message of one condition; its times are added later."""

    status: ConditionStatus
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Failure:
    """Something that a pass could not do, such as write a child or read the spec, and why."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class ConditionInputs:
    """The facts by which all conditions of one role are decided."""

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
        """Number of ready engines from which the endpoint counts as available."""
        deployment = self.plan.deployment
        return max(deployment.spec.scaling.min_replicas or 1, 1) if deployment is not None else 1

    @property
    def desired(self) -> int:
        """Desired number of engines; 0 when nothing may be changed."""
        return self.plan.replicas or 0

    @property
    def old_engines(self) -> int:
        """Number of engines that have an older revision."""
        return self.engine.replicas - self.engine.updated

    @property
    def complete(self) -> bool:
        """Whether as many pods are ready as are required now, not counting those that a roll-out adds."""
        deployment, desired = self.plan.deployment, self.plan.replicas
        if deployment is None or desired is None:
            return False
        rolling = not self.engine.current or self.old_engines > 0
        unavailable = deployment.spec.rollout.unavailable if rolling else 0
        engines = self.engine.ready >= max(desired - unavailable, min(self.minimum, desired))
        return engines and self.gateway.ready >= max(self.gateway.desired, 1)

    @property
    def rolled_out(self) -> bool:
        """Whether all engines that have room run the desired revision and are ready."""
        child = self.snapshot.engine
        return child is not None and is_ready(child, label_of(child), self.snapshot.pods)

    @property
    def adapter_outcomes(self) -> Mapping[str, AdapterOutcome | None]:
        """Outcome of the last attempt by name of each engine that may not serve the spec's adapters yet.

        None where the first attempt has not ended.
        """
        outcomes = self.snapshot.adapter_outcomes
        current = {
            update.pod: outcome
            for update in self.plan.adapter_updates
            if (outcome := outcomes.get(update.run)) is not None and outcome.settings == update.settings
        }
        return {update.pod: current.get(update.pod) for update in self.plan.adapter_updates}

    @property
    def blocked(self) -> ConditionResult | None:
        """Why nothing may be changed; None if changes may be made."""
        match self.verdict:
            case SpecInvalid(message):
                return ConditionResult("False", Reason.INVALID_SPEC, message)
            case DoesNotFit(message):
                return ConditionResult("False", Reason.PLAN_DOES_NOT_FIT, message)
            case ModelNotServed(message):
                return ConditionResult("False", Reason.MODEL_NOT_SERVED, message)
        return None


Rule = Callable[[ConditionInputs], ConditionResult | None]
"""Function that returns the result of a condition; None if the rule does not apply."""
Chain = tuple[Rule, ...]
"""Rules in order of precedence."""


def evaluate(chain: Chain, view: ConditionInputs, otherwise: ConditionResult) -> ConditionResult:
    """Return the result of the first rule that applies, or `otherwise` if none does.

    `view` holds the facts by which the rules decide.
    """
    return next((result for rule in chain if (result := rule(view)) is not None), otherwise)


BAD_WHEN_TRUE = frozenset({ConditionType.DEGRADED, ConditionType.RECONCILING, ConditionType.STALLED})
NOT_READY: dict[Role, Reason] = {
    "prefill": Reason.NO_READY_PREFILL_ENGINE,
    "decode": Reason.NO_READY_DECODE_ENGINE,
}
"""Reason that names the pool that has no ready engine."""
Results = Mapping[ConditionType, ConditionResult]


def combined(of_roles: Mapping[Role, Results], outgoing: str = "") -> dict[ConditionType, ConditionResult]:
    """Return the conditions of the whole deployment.

    Args:
        of_roles: the conditions of the engines of each role; unified engines have only one role.
        outgoing: sentence about engines of roles that are no longer in the spec and still answer; empty if
            none does.
    """
    types = next(iter(of_roles.values()))
    result = {type_: _worst(type_, {role: own[type_] for role, own in of_roles.items()}) for type_ in types}
    if outgoing and result[ConditionType.AVAILABLE].status != "True":
        result[ConditionType.AVAILABLE] = ConditionResult("True", Reason.REPLICAS_AVAILABLE, outgoing)
    return result


def _worst(type_: ConditionType, of_roles: Mapping[Role, ConditionResult]) -> ConditionResult:
    """Return the result of the worst role; the message names the role where the roles differ."""
    if len(set(of_roles.values())) == 1:
        return next(iter(of_roles.values()))
    rank = {role: _badness(type_, result) for role, result in of_roles.items()}
    most = max(rank.values())
    roles = [role for role in of_roles if rank[role] == most]
    worst = of_roles[roles[0]]
    same_reason = [role for role in roles if of_roles[role].reason == worst.reason]
    messages = dict.fromkeys(f"{role}: {of_roles[role].message}" for role in same_reason)
    if worst.reason == Reason.NO_READY_REPLICA and len(same_reason) == 1:
        return replace(worst, reason=NOT_READY[roles[0]], message="; ".join(messages))
    return replace(worst, message="; ".join(messages))


def _badness(type_: ConditionType, result: ConditionResult) -> int:
    """Return how bad a result is: the larger, the worse."""
    if type_ == ConditionType.PROGRESSING:
        if result.status == "True":
            return 1
        # A roll-out that is stuck or rolled back is worse than one that makes progress.
        return 0 if result.reason == Reason.UP_TO_DATE else 2
    order = ("False", "Unknown", "True") if type_ in BAD_WHEN_TRUE else ("True", "Unknown", "False")
    return order.index(result.status)
