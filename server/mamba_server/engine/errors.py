"""Errors of the engine process itself.

EngineError
├── NoDevice     the requested device is not here (exit 2)
└── DeviceLost   the device failed for good, while it served or before (exit 1)
"""


class EngineError(Exception):
    """Base class of the errors of the engine process. `exit_code` is the exit code of that process."""

    exit_code = 1


class DeviceLost(EngineError):
    """The device fails every step: only another process can use it again."""


class NoDevice(EngineError):
    """The requested device is not here."""

    exit_code = 2
