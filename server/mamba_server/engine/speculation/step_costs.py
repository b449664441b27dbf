"""Seconds of steps with and without drafts, by their sizes: the cost of drafts is measured. Pure."""

from collections import deque
from statistics import median

Size = tuple[int, int, int]
"""Classes of the number of sequences and of rows of drafts, and the tokens that the head drafted for one."""
KEPT = 7
"""Number of last steps of a size whose median counts."""
FORGOTTEN_AFTER = 256
"""Number of refusals after which the cost of a size is measured again: it may have been an accident."""
ASSUMED = 0.08
"""Cost of a row of drafts, in steps of one sequence, before it is measured: low, so that it is measured."""


class StepCosts:
    """Costs of the steps of one engine. `turns`: tokens that the model's head drafted before the step."""

    def __init__(self) -> None:
        self._seconds: dict[Size, deque[float]] = {}
        self._medians: dict[Size, float] = {}
        self._refusals: dict[Size, int] = {}

    def observe(self, decodes: int, drafts: int, seconds: float, turns: int = 0) -> None:
        """Record a step of `decodes` sequences with `drafts` rows of drafts, and no prompts."""
        size = _size(decodes, drafts, turns)
        last = self._seconds.setdefault(size, deque(maxlen=KEPT))
        last.append(seconds)
        self._medians[size] = median(last)
        self._refusals[size] = 0

    def knows(self, decodes: int) -> bool:
        """Return whether a step of `decodes` sequences without drafts was measured."""
        return _size(decodes, 0, 0) in self._medians

    def ratio(self, decodes: int, drafts: int, turns: int = 0) -> float:
        """Return the time of a step with drafts, as a multiple of the same step without."""
        size = _size(decodes, drafts, turns)
        plain = self._medians.get((size[0], 0, 0))
        if plain is None:
            return 1.0 + ASSUMED * drafts / decodes
        if size in self._medians:
            return self._medians[size] / plain
        # A row of drafts costs at least as much as it does in other steps of as many sequences.
        of_rows = [
            (seconds / plain - 1.0) / rows
            for (sequences, rows, others), seconds in self._medians.items()
            if sequences == size[0] and rows and (others > 0) == (turns > 0)
        ]
        return 1.0 + min(of_rows, default=ASSUMED / decodes) * drafts

    def refuse(self, decodes: int, drafts: int, turns: int = 0) -> None:
        """Record that drafts were left out for their cost."""
        size = _size(decodes, drafts, turns)
        self._refusals[size] = self._refusals.get(size, 0) + 1
        if self._refusals[size] >= FORGOTTEN_AFTER:
            self._refusals[size] = 0
            self._seconds.pop(size, None)
            self._medians.pop(size, None)


def _size(decodes: int, drafts: int, turns: int) -> Size:
    """Return the class of a step: exact up to eight, in powers of two beyond."""
    return _class(decodes), _class(drafts), turns


def _class(count: int) -> int:
    return count if count <= 8 else 8 * (count - 1).bit_length()
