"""What the engine process itself can fail with.

EngineError
├── NoDevice     the wanted device is not here (exit 2)
└── DeviceLost   the device failed for good, while it served or before (exit 1)
"""


class EngineError(Exception):
    """Base. `exit_code` is what the process ends with."""

    exit_code = 1


class DeviceLost(EngineError):
    """The device fails every step: only another process can go on with it, or without."""


class NoDevice(EngineError):
    """The wanted device is not here."""

    exit_code = 2
