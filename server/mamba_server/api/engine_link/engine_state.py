"""What is known of the engine process: loading, ready, restarting, failed. Pure.

`engine_client` moves it, `/readyz` shows it. Also the back-off between restarts.
"""

from dataclasses import dataclass
from typing import Literal

Phase = Literal["loading", "ready", "restarting", "failed"]

BACKOFF_FIRST = 0.2
BACKOFF_MOST = 5.0
STABLE_AFTER = 60.0
"""Seconds of life after which a death counts as the first again."""
STARTS_BEFORE_GIVING_UP = 3
"""Deaths in a row before the engine was ever ready."""


@dataclass(frozen=True, slots=True)
class EngineState:
    """One snapshot."""

    phase: Phase
    reason: str
    stage: str | None = None
    done: int | None = None
    total: int | None = None


def backoff(deaths: int, jitter: float) -> float:
    """Seconds before start number `deaths` + 1; `jitter` in [0, 1) spreads replicas that died together."""
    full = min(BACKOFF_MOST, BACKOFF_FIRST * 2.0 ** min(deaths - 1, 16))
    return full * (0.5 + 0.5 * jitter)


def death_reason(exit_code: int | None) -> str:
    """How a process ended, in words; None: it was killed because it hung."""
    if exit_code is None:
        return "the engine process hung and was killed"
    if exit_code < 0:
        return f"the engine process was killed by signal {-exit_code}"
    return f"the engine process ended with exit code {exit_code}"
