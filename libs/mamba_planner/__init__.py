"""The planner: how an engine spends its memory. Torch-free and pure; see `engine_plan.plan_engine`."""

from mamba_planner.constraints import Constraints, StateDtype, Workload
from mamba_planner.engine_plan import plan_engine
from mamba_planner.errors import BudgetError, InsufficientMemory, UnusableInput
from mamba_planner.memory import Device, MemoryBudget
from mamba_planner.memory_plan import LedgerLine, MemoryPlan, RejectedCandidate
from mamba_planner.planner import plan

__all__ = [
    "BudgetError",
    "Constraints",
    "Device",
    "InsufficientMemory",
    "LedgerLine",
    "MemoryBudget",
    "MemoryPlan",
    "RejectedCandidate",
    "StateDtype",
    "UnusableInput",
    "Workload",
    "plan",
    "plan_engine",
]
