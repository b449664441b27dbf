"""What the engine process itself can fail with.

EngineError
├── NoDevice     the wanted device is not here (exit 2)
└── DeviceLost   the device failed for good while it served (exit 1)
"""


class EngineError(Exception):
    """Base. `exit_code` is what the process ends with."""

    exit_code = 1


class DeviceLost(EngineError):
    """The device fails every step: only another process can go on with it, or without."""


def ends_the_device(error: BaseException) -> bool:
    """Whether `error` says that nothing will run on the device any more in this process.

    CUDA errors stick to the process, all but want of memory, which has words of its own.
    """
    return "CUDA error" in str(error)


class NoDevice(EngineError):
    """The wanted device is not here."""

    exit_code = 2
