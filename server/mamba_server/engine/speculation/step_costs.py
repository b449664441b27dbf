"""Seconds of steps with and without drafts, by their sizes: the cost of drafts is measured. Pure."""

from collections import deque
from statistics import median

KEPT = 7
"""Number of last steps of a size whose median counts."""
FORGOTTEN_AFTER = 256
"""Number of refusals after which the cost of a size is measured again: it may have been an accident."""
ASSUMED = 0.08
"""Cost of a row of drafts, in steps of one sequence, before it is measured: low, so that it is measured."""


class StepCosts:
    """Costs of the steps of one engine."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[int, int], deque[float]] = {}
        self._refusals: dict[tuple[int, int], int] = {}

    def observe(self, decodes: int, drafts: int, seconds: float) -> None:
        """Record a step of `decodes` sequences with `drafts` rows of drafts, and no prompts."""
        size = _size(decodes, drafts)
        self._seconds.setdefault(size, deque(maxlen=KEPT)).append(seconds)
        self._refusals[size] = 0

    def knows(self, decodes: int) -> bool:
        """Return whether a step of `decodes` sequences without drafts was measured."""
        return _size(decodes, 0) in self._seconds

    def ratio(self, decodes: int, drafts: int) -> float:
        """Return the time of a step with drafts, as a multiple of the same step without."""
        size, none = _size(decodes, drafts), _size(decodes, 0)
        if none not in self._seconds:
            return 1.0 + ASSUMED * drafts / decodes
        plain = median(self._seconds[none])
        if size in self._seconds:
            return median(self._seconds[size]) / plain
        # A row of drafts costs at least as much as it does in other steps of as many sequences.
        of_rows = [
            (median(seconds) / plain - 1.0) / rows
            for (sequences, rows), seconds in self._seconds.items()
            if sequences == none[0] and rows
        ]
        return 1.0 + min(of_rows, default=ASSUMED / decodes) * drafts

    def refuse(self, decodes: int, drafts: int) -> None:
        """Record that drafts were left out for their cost."""
        size = _size(decodes, drafts)
        self._refusals[size] = self._refusals.get(size, 0) + 1
        if self._refusals[size] >= FORGOTTEN_AFTER:
            self._refusals[size] = 0
            self._seconds.pop(size, None)


def _size(decodes: int, drafts: int) -> tuple[int, int]:
    """Return the class of a step: exact up to eight, in powers of two beyond."""
    return tuple(count if count <= 8 else 8 * (count - 1).bit_length() for count in (decodes, drafts))  # type: ignore[return-value]
