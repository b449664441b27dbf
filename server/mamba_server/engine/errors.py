"""What the engine process itself can fail with.

EngineError
└── NoDevice   the wanted device is not here (exit 2)
"""


class EngineError(Exception):
    """Base. `exit_code` is what the process ends with."""

    exit_code = 1


class NoDevice(EngineError):
    """The wanted device is not here."""

    exit_code = 2
