"""Distances between an answer as served and as computed once more, and their bounds. Pure.

Both sides compute the same function, and differ by rounding alone: chunks end elsewhere, and rows have other
neighbours. `docs/explanation/audits.md` says how the bounds were measured.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

SCORE_WINDOW = 8
"""Number of consecutive tokens whose differences are averaged: rounding strikes single tokens, a wrong state
all tokens that follow it for a while."""


class Bounds(NamedTuple):
    """The greatest distances between two computations of an answer that rounding explains."""

    scores: float
    """Mean difference of the log-probabilities of a window of tokens, in nats."""
    states: float
    """Difference of two states, as `state_distances` measures it."""

    def scores_of(self, tokens: int) -> float:
        """Return the bound for an answer of `tokens` tokens: a mean over fewer of them is less certain."""
        return self.scores * math.sqrt(SCORE_WINDOW / min(tokens, SCORE_WINDOW))


ACTIVATIONS = {
    "float64": Bounds(0.002, 0.001),
    "float32": Bounds(0.002, 0.001),
    "float16": Bounds(0.1, 0.1),
    "bfloat16": Bounds(0.75, 0.5),
}
"""Bounds by the type of activations."""
EXPERTS = {
    "float64": Bounds(0.5, 1.0),
    "float32": Bounds(0.5, 1.0),
    "float16": Bounds(1.5, 1.5),
    "bfloat16": Bounds(3.0, 2.0),
}
"""Bounds where tokens choose experts: rounding lets a token choose another one."""
NARROW_STATES = Bounds(0.1, 0.1)
"""Bounds where states are float16."""
INT8 = Bounds(0.2, 0.3)
"""Bounds where activations are rounded to int8."""
BATCH_INVARIANT = Bounds(0.0001, 0.0)
"""Bounds where the arithmetic of a token does not depend on its step: only the scores are rounded."""


@dataclass(frozen=True, slots=True)
class Precision:
    """How one engine rounds, as far as the distances between two computations depend on it."""

    dtype: str
    state_dtype: str
    int8: bool = False
    experts: bool = False
    batch_invariant: bool = False
    """Whether the engine computes batch-invariantly on a device where that holds bit by bit."""

    @property
    def bounds(self) -> Bounds:
        """Greatest distances that rounding explains: the largest of the bounds that apply."""
        if self.batch_invariant:
            return BATCH_INVARIANT
        rounded = [(EXPERTS if self.experts else ACTIVATIONS)[self.dtype]]
        if self.state_dtype == "float16":
            rounded.append(NARROW_STATES)
        if self.int8:
            rounded.append(INT8)
        return Bounds(max(each.scores for each in rounded), max(each.states for each in rounded))


def differences(served: Sequence[float], plain: Sequence[float]) -> list[float]:
    """Return the absolute difference of each pair of log-probabilities; infinity where one is not finite."""
    return [
        abs(left - right) if math.isfinite(left) and math.isfinite(right) else math.inf
        for left, right in zip(served, plain, strict=True)
    ]


def worst_window(deviations: Sequence[float]) -> tuple[float, int]:
    """Return the largest mean of up to `SCORE_WINDOW` consecutive differences, and the index of its first.

    An answer that is shorter than a window is one window.
    """
    if math.inf in deviations:
        return math.inf, list(deviations).index(math.inf)
    size = min(SCORE_WINDOW, len(deviations))
    sums = np.concatenate([[0.0], np.cumsum(np.asarray(deviations, np.float64))])
    means = (sums[size:] - sums[:-size]) / size
    begin = int(means.argmax())
    return float(means[begin]), begin
