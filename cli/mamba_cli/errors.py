"""Errors of the command line with their exit codes.

CliError
├── RunFailed      1  a failure while the command ran
├── InvalidInput   2  wrong usage or invalid input: the message names the file and the field
└── NoFittingPlan  3  the plan does not fit the memory: the message carries the numbers
"""


class CliError(Exception):
    """Base of all errors, each printed as one message on standard error."""

    exit_code = 1


class RunFailed(CliError):
    """A failure while the command ran."""


class InvalidInput(CliError):
    """Wrong usage, or an option, file or field with an invalid value."""

    exit_code = 2


class NoFittingPlan(CliError):
    """A plan that does not fit the memory."""

    exit_code = 3
