"""`StartBudget`: limits the time to plan the starts of one step; a start over budget waits for the next step.

Matching a prompt and allocating its memory is Python code that delays the next token of all running
sequences. How long it takes depends on prompt, cache and machine, so it is measured: the next start is
expected to take the median of the last few. The first start of a step is always allowed, so that no sequence
starves.
"""

from collections import deque
from collections.abc import Callable
from statistics import median

START_SECONDS = 0.0015
"""Seconds of a step for all its starts, however short steps are."""
START_SHARE = 0.25
"""Share of the time between two steps, where that is more: the most that a burst of starts delays running
answers."""
MAX_START_SECONDS = 0.0035
"""Bound for long steps, after a pause, and where no answer is being written."""
MEDIAN_STARTS = 7
"""Number of last starts whose median is expected of the next one."""


class StartBudget:
    """Limits the time in which one scheduler plans starts. `clock` returns seconds; pure apart from that."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._recent: deque[float] = deque(maxlen=MEDIAN_STARTS)
        self._seconds = START_SECONDS
        self._began = clock()
        self._checks = 0.0
        self._started = 0

    def begin(self, *, answering: bool) -> None:
        """Begin the budget of a new step. `answering`: a sequence is decoding and waits for the step."""
        now = self._clock()
        self._seconds = MAX_START_SECONDS
        if answering:
            self._seconds = min(max(START_SECONDS, START_SHARE * (now - self._began)), MAX_START_SECONDS)
        self._began = now
        self._started = 0

    def allows(self) -> bool:
        """Return whether one more sequence may start in this step."""
        self._checks = self._clock()
        if not self._started:
            return True
        return self._checks - self._began + median(self._recent) <= self._seconds

    def started(self) -> None:
        """Record that the sequence which was last allowed to start has started."""
        self._started += 1
        self._recent.append(self._clock() - self._checks)
