"""How fast an engine is: its own measurement, which turns tokens into seconds, and the fleet's share in it.

Engines that are alike measure themselves unlike: by the steps they happened to have, a slow first one, other
work on their machine. An engine that counts as slow is sent nothing, measures nothing, and stays slow: its
memory is lost to the fleet. So a difference counts as far as it is certain. Pure.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from mamba_planner.arithmetic import prefill_work

CERTAIN_ERRORS = 4.0
"""Standard errors by which an engine differs from the others before any of the difference counts."""
MIN_ERROR = 0.01
"""Smallest relative error that a speed is taken to have: no engine outweighs all others."""


@dataclass(frozen=True, slots=True)
class EngineSpeed:
    """One engine's speed. `attention_ratio` is what attention adds to a token's work for each before it."""

    tokens_per_second: float
    attention_ratio: float = 0.0
    decode_seconds: float = 0.0
    """Time of a step that only decodes; 0 = not measured yet."""
    error: float = 0.0
    """Relative standard error of `tokens_per_second`; 0 = the engine does not report one, and is believed."""

    def work(self, start: int, stop: int) -> float:
        """Return the work of the prompt tokens [start, stop), in units of a prompt's first token."""
        return prefill_work(start, stop, self.attention_ratio)

    def seconds(self, start: int, stop: int) -> float:
        """Return the time to compute the prompt tokens [start, stop)."""
        return prefill_work(start, stop, self.attention_ratio) / self.tokens_per_second


NOMINAL = EngineSpeed(10_000.0)
"""Speed assumed where no engine has measured itself: high, so that load decides unless much differs."""


def pooled_speed(own: EngineSpeed, fleet: Iterable[EngineSpeed]) -> EngineSpeed:
    """Return `own`, drawn to the mean of the `fleet` by how uncertain it is.

    The fleet is all engines that serve the same, this one among them. Within `CERTAIN_ERRORS` the result is
    the mean, beyond it less and less of it (as James and Stein do). An engine that does not report its error
    is believed, and does not count in the mean.
    """
    if not own.error:
        return own
    total = weights = 0.0
    for speed in fleet:
        if not speed.error:
            continue
        weight = 1 / max(speed.error, MIN_ERROR) ** 2
        total, weights = total + weight * math.log(speed.tokens_per_second), weights + weight
    difference = math.log(own.tokens_per_second) - total / weights
    uncertain = CERTAIN_ERRORS * own.error
    kept = 1 - (uncertain / difference) ** 2 if abs(difference) > uncertain else 0.0
    return replace(own, tokens_per_second=math.exp(total / weights + kept * difference))
