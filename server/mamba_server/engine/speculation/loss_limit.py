"""`LossLimit`: bounds the time that drafts lose, whatever they promise. Pure.

A source of drafts that may leave them out asks it before it proposes any, and tells it what each step with
drafts has cost and yielded. Times are in steps without drafts, from measured quartiles, so that one step that
another process has interrupted counts as any other.
"""

SPENT_A_STEP = 0.005
"""Part of a step that drafts may lose for each step of the engine."""
CREDIT = 4.0
"""Most steps that drafts may lose at once: also at the start, when nothing is known of them."""
RESUMED = 0.5
"""Steps that may be lost again before drafts return which had used up the credit."""
SEEN = 0.5
"""Part of the gain that a look-up would have had which counts as if it had been drafted."""


class LossLimit:
    """Bounds the time that one engine loses by drafts that turn out wrong, in steps without drafts.

    Each step adds a little to what drafts may lose, and so does each gain, up to `CREDIT`.
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
        self._add(SPENT_A_STEP * count)

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
        self._left = min(self._left + steps, CREDIT)
        self._is_reached = self._left < (RESUMED if self._is_reached else 0.0)
