"""How long answers become: learned from those that ended, asked for those that run. Pure."""

import bisect
from collections import deque

WINDOW = 128
"""Answers that are remembered: after a change of the traffic as many ends later only the new ones count."""
PRIOR_WEIGHT = 4
"""Answers that the length expected beforehand stands for."""
QUANTILE = 0.5
"""Which of the answers that became longer this one is taken for: too short as often as too long."""
LEAST_TAIL = 4
"""With fewer answers that became longer nothing is known; then one is taken to be in its middle."""


class AnswerLengths:
    """Lengths of the answers that ended last, in tokens. `prior`: what to expect before any did."""

    def __init__(self, prior: int) -> None:
        self._recent: deque[int] = deque([prior] * PRIOR_WEIGHT)
        self._sorted = [prior] * PRIOR_WEIGHT

    def ended(self, tokens: int) -> None:
        """An answer ended after `tokens` tokens, whoever ended it."""
        if len(self._recent) == WINDOW:
            self._sorted.pop(bisect.bisect_left(self._sorted, self._recent.popleft()))
        self._recent.append(tokens)
        bisect.insort(self._sorted, tokens)

    def expected(self, outputs: int) -> int:
        """Tokens of a whole answer of which `outputs` are there; always more than those."""
        known = self._sorted
        shorter = bisect.bisect_right(known, outputs)
        longer = len(known) - shorter
        return known[shorter + int(longer * QUANTILE)] if longer >= LEAST_TAIL else 2 * outputs + 1
