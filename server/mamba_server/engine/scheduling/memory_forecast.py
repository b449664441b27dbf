"""`MemoryForecast`: whether all running sequences and one more will fit until they end. Pure, in pages.

Sequences grow by a token per step until their expected end and then free what they hold, so the demand peaks
just before one of them ends; it is computed at each of these moments (as in Gong et al., "Past-Future
Scheduler", ASPLOS 2025). Slots count as the pages that fit into their slabs.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class SequenceGrowth:
    """Memory that one sequence will take and free."""

    tokens_left: int
    """Tokens until its expected end."""
    prompt_pages: float
    """Pages that it still takes for its prompt, before it grows."""
    held_pages: int
    """Pages that it holds now and frees at its end."""


class MemoryForecast:
    """`free`: pages that are free or evictable now; `running`: the running sequences."""

    def __init__(self, free: int, page_size: int, running: Iterable[SequenceGrowth]) -> None:
        self._free = free
        self._page_size = page_size
        self._running = list(running)
        self._growth = sum(self._final_growth(each) for each in self._running)

    def admits(self, newcomer: SequenceGrowth) -> bool:
        """Whether `newcomer` fits beside the running sequences until each ends; if so it counts as
        running."""
        most = self._growth + self._final_growth(newcomer)
        # First an upper bound, as if no sequence ended.
        if most > self._free and self._peak([*self._running, newcomer]) > self._free:
            return False
        self._running.append(newcomer)
        self._growth = most
        return True

    def _final_growth(self, growth: SequenceGrowth) -> float:
        return growth.prompt_pages + growth.tokens_left / self._page_size

    def _peak(self, running: list[SequenceGrowth]) -> float:
        """Most pages beyond those held now. At the end of the k-th the first k are still there and grew."""
        left, wanted, held = np.array(
            [(each.tokens_left, each.prompt_pages, each.held_pages) for each in running]
        ).T
        longest_first = np.argsort(-left, kind="stable")
        left, wanted, held = left[longest_first], wanted[longest_first], held[longest_first]
        alive = np.arange(1, len(running) + 1)
        gone = held.sum() - held.cumsum()
        return float((wanted.cumsum() + alive * left / self._page_size - gone).max())
