"""`LossLimit`: bounds the time that drafts lose, whatever they promise. Pure.

A source that may leave drafts out asks the limit before it spends time on drafts, on reading by a head, or
on trials, and reports to the limit what came of them. So what an answer loses is bounded by construction:
`CREDIT` when it begins, `SPENT_A_STEP` for each of its steps, and at most `CREDIT` more where text of the
answer itself promised a gain. Times are in steps without drafts, from measured quartiles, so that one step
that another process has interrupted counts as any other.
"""

import math

SPENT_A_STEP = 0.003
"""Part of a step that drafts may lose for each step of the engine."""
CREDIT, MOST_CREDIT = 2.0, 8.0
"""Steps that drafts may lose at the start of an answer, and after they have gained in it."""
SEEN = 0.5
"""Share of the gain that a draft on trial promised which counts as if the draft had been computed."""


class LossLimit:
    """Bounds the time that one engine loses by drafts that turn out wrong, in steps without drafts.

    Each step adds a little to what drafts may lose, up to `CREDIT`, and each gain what it has saved, up to
    `MOST_CREDIT`. With the next answer, what exceeds `CREDIT` is lost: no answer pays with gains of another.
    """

    def __init__(self) -> None:
        self._left = CREDIT
        self._lent = 0.0
        """Steps that trials have added to what drafts may lose, and that no gain has paid back yet."""

    def affords(self, time: float) -> bool:
        """Return whether drafts may lose `time`, in steps without drafts."""
        return self._left >= time

    def steps_of(self, time: float) -> int:
        """Return the number of next steps each of which may lose `time`."""
        return max(0, int(self._left / time))

    def steps_until(self, time: float) -> int:
        """Return the number of steps after which drafts may lose that much, if they lose nothing before."""
        return max(0, math.ceil((time - self._left) / SPENT_A_STEP))

    def answer_began(self) -> None:
        """Record that an answer began that had no drafts yet."""
        self._left, self._lent = min(self._left, CREDIT), 0.0

    def steps_ended(self, count: int) -> None:
        """Record the end of `count` steps, with or without drafts."""
        self._left = max(self._left, min(self._left + SPENT_A_STEP * count, CREDIT))

    def spent(self, time: float) -> None:
        """Record what it took to learn whether drafts would pay, or to return to steps without them."""
        self._left -= time

    def drafted(self, tokens: float, time: float) -> None:
        """Record a step with drafts.

        `tokens` is what it yielded for a sequence, and `time` its duration in steps without drafts.
        """
        gain = tokens - time
        self._left = min(self._left + gain, MOST_CREDIT)
        self._lent = max(0.0, self._lent - max(gain, 0.0))

    def foreseen(self, tokens: float, time: float) -> None:
        """Record a draft that was compared with the answer without being computed.

        It would have yielded `tokens` tokens in `time`, in steps without drafts.
        """
        lent = min(SEEN * max(tokens - time, 0.0), CREDIT - self._lent, MOST_CREDIT - self._left)
        self._left += lent
        self._lent += lent
