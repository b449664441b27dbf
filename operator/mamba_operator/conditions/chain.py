"""Rules of conditions: their inputs, their results, and chains of rules in order of precedence. Pure.

`health` and `progress` hold the rules of two conditions each: one function a rule, and a tuple of them for
each condition. Nothing here writes to the cluster.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from mamba_api.v1alpha1.conditions import ConditionStatus, Reason
from mamba_operator.decision.reconcile_plan import ReconcilePlan
from mamba_operator.memory.verdict import DoesNotFit, MemoryVerdict, ModelNotServed, SpecInvalid
from mamba_operator.objects.recorded_status import WorkloadState
from mamba_operator.observation.snapshot import Snapshot
from mamba_operator.render.revision import label_of
from mamba_operator.rollout.rollback import is_ready


@dataclass(frozen=True, slots=True)
class ConditionResult:
    """Status, reason and message of one condition, without its dates."""

    status: ConditionStatus
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Failure:
    """Change that could not be made."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class ConditionInputs:
    """Everything that the conditions are decided from."""

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
        """Number of engines with an older revision."""
        return self.engine.replicas - self.engine.updated

    @property
    def complete(self) -> bool:
        """Whether as many pods are ready as have to be now, without the pods that a roll-out adds."""
        deployment, desired = self.plan.deployment, self.plan.replicas
        if deployment is None or desired is None:
            return False
        rolling = not self.engine.current or self.old_engines > 0
        unavailable = deployment.spec.rollout.unavailable if rolling else 0
        engines = self.engine.ready >= max(desired - unavailable, min(self.minimum, desired))
        return engines and self.gateway.ready >= max(self.gateway.desired, 1)

    @property
    def rolled_out(self) -> bool:
        """Whether all engines that there is room for run the desired revision and are ready."""
        child = self.snapshot.engine
        return child is not None and is_ready(child, label_of(child), self.snapshot.pods)

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
    """Return the result of the first rule that applies, or `otherwise` if none does."""
    return next((result for rule in chain if (result := rule(view)) is not None), otherwise)
