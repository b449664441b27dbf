"""The planner: how an engine spends its memory. Torch-free and pure; see `planner.plan`."""

from mamba_server.budget.constraints import Constraints, StateDtype, Workload
from mamba_server.budget.engine_plan import LedgerLine, Plan, Rejected
from mamba_server.budget.errors import BudgetError, DoesNotFit, UnusableInput
from mamba_server.budget.memory import Device, MemoryBudget
from mamba_server.budget.planner import plan

__all__ = [
    "BudgetError",
    "Constraints",
    "Device",
    "DoesNotFit",
    "LedgerLine",
    "MemoryBudget",
    "Plan",
    "Rejected",
    "StateDtype",
    "UnusableInput",
    "Workload",
    "plan",
]
