"""What planning can fail with.

BudgetError
├── UnusableInput   exit 2, condition reason InvalidSpec: an input the planner cannot use, named
└── DoesNotFit      exit 3, condition reason DoesNotFit: the memory is too small; the message has the numbers
"""


class BudgetError(ValueError):
    """Base. `exit_code` ends the command line, `condition_reason` goes into the status."""

    exit_code = 1
    condition_reason = "PlanFailed"


class UnusableInput(BudgetError):
    """An input is outside of what can be planned; the message names it and what would do."""

    exit_code = 2
    condition_reason = "InvalidSpec"


class DoesNotFit(BudgetError):
    """Weights, workspace and one sequence need more than the budget. `need` and `have` are bytes."""

    exit_code = 3
    condition_reason = "DoesNotFit"

    def __init__(self, message: str, need: int, have: int) -> None:
        self.need = need
        self.have = have
        super().__init__(message)
