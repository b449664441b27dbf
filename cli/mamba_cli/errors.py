"""What the command line can fail with, and the exit code of each.

CliError
├── RunFailed      1  something broke while running
├── InvalidInput   2  wrong usage or invalid input: the message names the file and the field
└── NoFittingPlan  3  the plan does not fit the memory: the message carries the numbers
"""


class CliError(Exception):
    """Base: printed as one message on standard error."""

    exit_code = 1


class RunFailed(CliError):
    """Something broke while running."""


class InvalidInput(CliError):
    """Wrong usage or invalid input."""

    exit_code = 2


class NoFittingPlan(CliError):
    """The plan does not fit."""

    exit_code = 3
