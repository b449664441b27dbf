"""Time as the gateway reads it, so that tests may give it another."""

from typing import Protocol


class Clock(Protocol):
    """Monotonic seconds."""

    def __call__(self) -> float: ...
