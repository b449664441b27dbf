"""State of the engine process (loading, ready, restarting, failed), and the back-off between restarts. Pure.

`engine_client` changes the state, `/readyz` reports it.
"""

from dataclasses import dataclass
from typing import Literal

Phase = Literal["loading", "ready", "restarting", "failed"]

MIN_BACKOFF_SECONDS = 0.2
MAX_BACKOFF_SECONDS = 5.0
STABLE_SECONDS = 60.0
"""Lifetime of a process after which its death counts as the first one again."""
MAX_FAILED_STARTS = 3
"""Number of deaths in a row, without the engine ever being ready, after which the server gives up."""


@dataclass(frozen=True, slots=True)
class EngineState:
    """Whether the engine process loads, serves or has ended, and how far it has loaded."""

    phase: Phase
    reason: str
    stage: str | None = None
    done: int | None = None
    total: int | None = None


def backoff(deaths: int, jitter: float) -> float:
    """Return the seconds before start number `deaths` + 1.

    `jitter` in [0, 1) spreads replicas that died at the same time.
    """
    full = min(MAX_BACKOFF_SECONDS, MIN_BACKOFF_SECONDS * 2.0 ** min(deaths - 1, 16))
    return full * (0.5 + 0.5 * jitter)


def death_reason(exit_code: int | None) -> str:
    """Describe in words how the process ended; None: it was killed because it hung."""
    if exit_code is None:
        return "the engine process hung and was killed"
    if exit_code < 0:
        return f"the engine process was killed by signal {-exit_code}"
    return f"the engine process ended with exit code {exit_code}"
