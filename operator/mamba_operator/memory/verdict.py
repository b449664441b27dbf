"""`MemoryVerdict`: the planner's verdict on a deployment's memory, one class per outcome. Pure data."""

from dataclasses import dataclass

from mamba_api.v1alpha1 import PlanStatus
from mamba_api.v1alpha1.conditions import Reason


@dataclass(frozen=True, slots=True)
class Fits:
    """Verdict that a strategy fits."""

    plan: PlanStatus
    message: str
    """One line with the most important numbers of the plan."""
    reported: bool = False
    """Whether engines computed this plan and reported it, because the operator could compute none."""


@dataclass(frozen=True, slots=True)
class DoesNotFit:
    """Verdict that the memory cannot hold the weights and one sequence."""

    message: str
    """Required and available bytes, and the changes that help."""


@dataclass(frozen=True, slots=True)
class ModelNotServed:
    """Verdict that the engines of this version cannot serve a model that the planner knows.

    The pass changes no child.
    """

    message: str
    """Missing feature of the engines, and the models that they serve."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Verdict that an argument of the planner is not known yet. Engines may start and plan for themselves."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class SpecInvalid:
    """Verdict that the spec breaks a rule which the API server does not check. The pass changes no child."""

    message: str


MemoryVerdict = Fits | DoesNotFit | ModelNotServed | Unknown | SpecInvalid
