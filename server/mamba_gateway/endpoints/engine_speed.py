"""The speed of an engine, which converts tokens to seconds: its measurement, corrected by the fleet's.

Identical engines measure different speeds, because of the steps that they happened to run, a slow first step,
or other work on their machine. An engine that appears slow gets no requests, so it measures nothing more and
continues to appear slow, and the fleet loses its memory. So a difference counts only as far as it is
statistically certain. Pure.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from mamba_planner.arithmetic import prefill_work

CERTAIN_ERRORS = 4.0
"""Number of standard errors by which an engine must differ from the others before the difference counts."""
MIN_ERROR = 0.01
"""Smallest relative error that a speed is assumed to have, so that no engine outweighs all others."""


@dataclass(frozen=True, slots=True)
class EngineSpeed:
    """Speed of one engine.

    `attention_ratio` is the extra work of a prompt token for each token before it, relative to the work of
    the first token.
    """

    tokens_per_second: float
    attention_ratio: float = 0.0
    decode_seconds: float = 0.0
    """Seconds of a step that only decodes; 0 = not measured."""
    error: float = 0.0
    """Relative standard error of `tokens_per_second`; 0 = the engine reports none, and its speed is used as
    it is."""

    def work(self, start: int, stop: int) -> float:
        """Return the work of the prompt tokens [start, stop), in units of a prompt's first token."""
        return prefill_work(start, stop, self.attention_ratio)

    def seconds(self, start: int, stop: int) -> float:
        """Return the seconds to compute the prompt tokens [start, stop)."""
        return prefill_work(start, stop, self.attention_ratio) / self.tokens_per_second


NOMINAL = EngineSpeed(10_000.0)
"""Speed that is assumed for engines that have measured none. It is high, so that small differences of work do
not outweigh the load."""


def pooled_speed(own: EngineSpeed, fleet: Iterable[EngineSpeed]) -> EngineSpeed:
    """Return the speed `own`, moved towards the mean of `fleet` as far as it is uncertain.

    `fleet` are the speeds of all engines that serve the same models, this one included. Within
    `CERTAIN_ERRORS` of the mean the result is the mean; beyond that it approaches `own` (a James-Stein
    estimate). The speed of an engine that reports no error is returned unchanged, and does not count in the
    mean.
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
