"""How long answers become: learned from those that ended, asked for those that run. Pure.

Of one that reached its `max_tokens` it is known that it would have gone on, not how far (the product-limit
estimate of Kaplan and Meier, 1958): clients whose answers fill what they ask for are taken at their word.
"""

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
        self._recent: deque[tuple[int, bool]] = deque([(prior, False)] * PRIOR_WEIGHT)
        self._sorted = [(prior, False)] * PRIOR_WEIGHT
        self._whole: list[int | None] = []
        """What to expect of one that became longer than the first i of `_sorted`; None = all it asked for.
        Empty = to be worked out."""

    def ended(self, tokens: int, *, cut: bool = False) -> None:
        """An answer ended after `tokens` tokens, whoever ended it; `cut`: because it asked for no more."""
        if len(self._recent) == WINDOW:
            self._sorted.pop(bisect.bisect_left(self._sorted, self._recent.popleft()))
        self._recent.append((tokens, cut))
        bisect.insort(self._sorted, (tokens, cut))
        self._whole = []

    def expected(self, outputs: int, most: int) -> int:
        """Tokens of a whole answer of which `outputs` are there and which asked for `most`.

        More than there are, as far as `most` goes.
        """
        shorter = bisect.bisect_right(self._sorted, (outputs, True))
        if len(self._sorted) - shorter >= LEAST_TAIL:
            whole = (self._whole or self._work_out())[shorter]
        else:
            # Those that came as far were all cut: so will this one be.
            whole = None if all(cut for _, cut in self._sorted[-LEAST_TAIL:]) else 2 * outputs + 1
        return most if whole is None else min(whole, most)

    def _work_out(self) -> list[int | None]:
        gone, share = [0.0], 1.0
        for longer, (_, cut) in zip(range(len(self._sorted), 0, -1), self._sorted, strict=True):
            share *= 1.0 if cut else 1 - 1 / longer
            gone.append(1 - share)
        for before in gone:
            # Past rounding: of an even number the upper one in the middle.
            at = bisect.bisect_right(gone, before + QUANTILE * (1 - before) + 1e-9)
            self._whole.append(self._sorted[at - 1][0] if at < len(gone) else None)
        return self._whole
