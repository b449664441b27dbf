"""`MemoryForecast`: whether all running sequences and one more fit until they end. Pure, in pages.

Sequences grow by a token per step until their expected end and then free what they hold, so the demand peaks
just before one of them ends; it is computed at each of these moments (as in Gong et al., "Past-Future
Scheduler", ASPLOS 2025). Slots count as the pages that fit into their slabs.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class SequenceGrowth:
    """Forecast of the pages that one sequence will take until its end, and frees then."""

    tokens_left: int
    """Tokens until its expected end."""
    prompt_pages: float
    """Pages that it still takes for its prompt, before it grows."""
    held_pages: int
    """Pages that it holds now and frees at its end."""


class MemoryForecast:
    """Says whether one more sequence fits, now and until all running sequences end.

    It holds for one step. `free` is the number of pages that are free or evictable now; `running` are the
    running sequences.
    """

    def __init__(self, free: int, page_size: int, running: Iterable[SequenceGrowth]) -> None:
        self._free = free
        self._page_size = page_size
        self._running = list(running)
        self._growth = sum(self._final_growth(growth) for growth in self._running)

    def admits(self, newcomer: SequenceGrowth) -> bool:
        """Return whether `newcomer` and the running sequences fit until each ends.

        If so, `newcomer` counts as one of the running sequences from now on.
        """
        upper_bound = self._growth + self._final_growth(newcomer)
        # First the upper bound, as if no sequence ended.
        if upper_bound > self._free and self._peak([*self._running, newcomer]) > self._free:
            return False
        self._running.append(newcomer)
        self._growth = upper_bound
        return True

    def _final_growth(self, growth: SequenceGrowth) -> float:
        return growth.prompt_pages + growth.tokens_left / self._page_size

    def _peak(self, running: list[SequenceGrowth]) -> float:
        """Return the largest number of pages, beyond those held now, that are needed until all have ended.

        The sequences are taken in the order of their tokens left, most first. Just before the k-th of them
        ends, the first k are still running and have grown by as many tokens as it had left; all later ones
        have ended and freed their pages.
        """
        left, prompt, held = np.array(
            [(growth.tokens_left, growth.prompt_pages, growth.held_pages) for growth in running]
        ).T
        longest_first = np.argsort(-left, kind="stable")
        left, prompt, held = left[longest_first], prompt[longest_first], held[longest_first]
        alive = np.arange(1, len(running) + 1)
        freed = held.sum() - held.cumsum()
        return float((prompt.cumsum() + alive * left / self._page_size - freed).max())
