"""How long the starts of one step may take to plan: whoever would overrun waits for the next step.

Every start is matched, weighed and given memory by Python code while answers of others wait for their next
token. What that takes depends on prompt, cache and machine, so it is measured: the next start is expected to
take as long as most of the last few did. The first of a step always goes, so nobody waits for ever.
"""

from collections import deque
from collections.abc import Callable
from statistics import median

START_SECONDS = 0.0015
"""Of a step, for its starts together, however short steps are."""
START_SHARE = 0.25
"""Of the time between two steps, where that is more: what the starts of a burst cost its answers at most."""
MOST_SECONDS = 0.0035
"""Also of long steps, after a pause, or where nobody is being answered yet."""
RECENT = 7
"""Starts that are looked back at."""


class StartBudget:
    """`clock` tells seconds. Pure but for that."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._seconds = START_SECONDS
        self._began = clock()
        self._checks = 0.0
        self._started = 0

    def begin(self, *, answering: bool) -> None:
        """The starts of a new step come next. `answering`: somebody's next token waits for them."""
        now = self._clock()
        self._seconds = MOST_SECONDS
        if answering:
            self._seconds = min(max(START_SECONDS, START_SHARE * (now - self._began)), MOST_SECONDS)
        self._began = now
        self._started = 0

    def allows(self) -> bool:
        """Whether one more may start in this step."""
        self._checks = self._clock()
        if not self._started:
            return True
        return self._checks - self._began + median(self._recent) <= self._seconds

    def started(self) -> None:
        """Who was allowed last has started."""
        self._started += 1
        self._recent.append(self._clock() - self._checks)
