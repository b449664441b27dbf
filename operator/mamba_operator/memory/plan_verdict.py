"""What the planner says about a deployment's memory, one class per outcome. Pure data."""

from dataclasses import dataclass

from mamba_api.v1alpha1 import PlanStatus
from mamba_api.v1alpha1.conditions import Reason


@dataclass(frozen=True, slots=True)
class PlanFits:
    """A strategy fits."""

    plan: PlanStatus
    message: str
    """One line with the numbers that matter."""
    reported: bool = False
    """Engines made this plan for themselves and told it; the operator could make none."""


@dataclass(frozen=True, slots=True)
class PlanDoesNotFit:
    """The memory cannot hold the weights and one sequence."""

    message: str
    """The numbers."""


@dataclass(frozen=True, slots=True)
class ModelNotServed:
    """The planner knows the model and this version's engines cannot serve it. Nothing is changed."""

    message: str
    """What is missing, and what is served."""


@dataclass(frozen=True, slots=True)
class PlanUnknown:
    """Something the planner needs is not known yet; engines may start and plan for themselves."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class SpecInvalid:
    """The spec breaks the contract in a way the API server did not see. Nothing is changed."""

    message: str


PlanVerdict = PlanFits | PlanDoesNotFit | ModelNotServed | PlanUnknown | SpecInvalid
