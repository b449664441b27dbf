"""Lengths of answers: learned from those that ended, estimated for those that run. Pure.

An answer that reached its `max_tokens` would have been longer by an unknown amount (the product-limit
estimate of Kaplan and Meier, 1958): clients whose answers fill `max_tokens` are expected to do so again.
"""

import bisect
from collections import deque

MAX_ANSWERS = 128
"""Answers that are remembered: after a change of the traffic, only new ones count once as many have ended."""
PRIOR_WEIGHT = 4
"""Weight of the length that is expected beforehand, as a number of answers that have ended."""
QUANTILE = 0.5
"""Quantile of the longer answers that is expected: too short as often as too long."""
MIN_TAIL = 4
"""Least number of longer answers for an estimate; with fewer, an answer is expected to be in its middle."""


class AnswerLengths:
    """Estimates how many tokens an answer will have, from the answers that ended last.

    `prior` is the estimate before any has ended.
    """

    def __init__(self, prior: int) -> None:
        self._recent: deque[tuple[int, bool]] = deque([(prior, False)] * PRIOR_WEIGHT)
        self._sorted = [(prior, False)] * PRIOR_WEIGHT
        self._whole: list[int | None] = []
        """Expected length of an answer longer than the first i of `_sorted`; None = its `max_tokens`. Empty =
        to be computed."""

    def ended(self, tokens: int, *, cut: bool = False) -> None:
        """Record that an answer ended after `tokens` tokens; `cut`: it reached its `max_tokens`."""
        if len(self._recent) == MAX_ANSWERS:
            self._sorted.pop(bisect.bisect_left(self._sorted, self._recent.popleft()))
        self._recent.append((tokens, cut))
        bisect.insort(self._sorted, (tokens, cut))
        self._whole = []

    def expected(self, outputs: int, most: int) -> int:
        """Return the expected tokens of an answer that has `outputs` and may have at most `most`.

        More than `outputs`, as far as `most` allows.
        """
        shorter = bisect.bisect_right(self._sorted, (outputs, True))
        if len(self._sorted) - shorter >= MIN_TAIL:
            whole = (self._whole or self._estimate())[shorter]
        else:
            # If all answers of this length were cut, this one will be, too.
            whole = None if all(cut for _, cut in self._sorted[-MIN_TAIL:]) else 2 * outputs + 1
        return most if whole is None else min(whole, most)

    def _estimate(self) -> list[int | None]:
        ended, share = [0.0], 1.0
        for longer, (_, cut) in zip(range(len(self._sorted), 0, -1), self._sorted, strict=True):
            share *= 1.0 if cut else 1 - 1 / longer
            ended.append(1 - share)
        for shorter in ended:
            # Beyond rounding errors: the upper median of an even number.
            index = bisect.bisect_right(ended, shorter + QUANTILE * (1 - shorter) + 1e-9)
            self._whole.append(self._sorted[index - 1][0] if index < len(ended) else None)
        return self._whole
