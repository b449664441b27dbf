"""`LossLimit`: bounds the time that drafts lose, whatever they promise, and that of looking for them. Pure.

A source of drafts that may leave them out asks it before it proposes any, and tells it what each step with
drafts has cost and yielded, and what it did to find out whether drafts would pay. Times are in steps without
drafts, from measured quartiles, so that one step that another process has interrupted counts as any other.
"""

import math

SPENT_A_STEP = 0.003
"""Part of a step that drafts may lose for each step of the engine."""
CREDIT, MOST_CREDIT = 3.0, 8.0
"""Steps that drafts may lose at the start, when nothing is known of them, and after they have gained."""
CREDIT_FADING = 0.2
"""Credit beyond `CREDIT` that is lost with each step, so that gains of long ago pay for nothing."""
RESUMED = 0.5
"""Steps that may be lost again before drafts return which had used up the credit."""
SEEN = 0.5
"""Part of the gain that a look-up would have had which counts as if it had been drafted."""


class LossLimit:
    """Bounds the time that one engine loses by drafts that turn out wrong, in steps without drafts.

    Each step adds a little to what drafts may lose, up to `CREDIT`, and each gain what it has saved, up to
    `MOST_CREDIT`.
    """

    def __init__(self) -> None:
        self._left = CREDIT
        self._is_reached = False

    @property
    def is_reached(self) -> bool:
        """Whether drafts have lost all that they may, and nothing shows yet that they would gain."""
        return self._is_reached

    def steps_ended(self, count: int) -> None:
        """Record the end of `count` steps, with or without drafts."""
        if self._left > CREDIT:
            self._left = max(CREDIT, self._left - CREDIT_FADING * count)
        else:
            self._add(min(SPENT_A_STEP * count, CREDIT - self._left))

    def spent(self, time: float) -> None:
        """Record what it took to learn whether drafts would pay."""
        self._add(-time)

    def steps_until(self, time: float) -> int:
        """Return the number of steps after which drafts may lose that much, if they lose nothing before."""
        return max(0, math.ceil((time - self._left) / SPENT_A_STEP))

    def drafted(self, tokens: float, time: float) -> None:
        """Record a step with drafts.

        `tokens` is what it yielded for a sequence, and `time` its duration in steps without drafts.
        """
        self._add(tokens - time)

    def foreseen(self, tokens: float, time: float) -> None:
        """Record a draft that was compared with the answer without being computed.

        It would have yielded `tokens` tokens in `time`, in steps without drafts.
        """
        self._add(SEEN * max(tokens - time, 0.0))

    def _add(self, steps: float) -> None:
        self._left = min(self._left + steps, MOST_CREDIT)
        self._is_reached = self._left < (RESUMED if self._is_reached else 0.0)
