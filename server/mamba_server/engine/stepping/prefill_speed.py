"""Speed at which this engine computes prompts, its standard error, and the time of a decode step. Pure.

Gateways read it to choose between engines. It is work over time of the last steps with prompts in them, so
that a large step weighs more than a small one; old steps fade. The time of a step that only decodes is
subtracted, because every step takes it whatever is in it: otherwise an engine of short prompts would seem
slow.
"""

import math

from mamba_planner.arithmetic import prefill_work
from mamba_server.engine.sequences.schedule import Schedule

FADING = 0.95
"""Factor by which each later step reduces the weight of a step."""
DECODE_SHARE = 0.2
"""Share of the difference by which a decode step moves the estimate of its time."""
MIN_PROMPT_SHARE = 0.2
"""Least share of a step's time that counts for its prompt tokens: the measured decode time may be out of
date."""
MAX_ERROR = 1.0
"""Largest reported error, and the error of an unknown speed."""
DOUBLING_SECONDS = 15.0
"""Seconds without a prompt in which the error doubles: the cause of a low speed may be gone."""


class PrefillSpeed:
    """Measures how fast one engine computes prompts, and how certain that speed is.

    `ratio`: work that attention adds to a token for each token before it, relative to the token's other work.
    """

    def __init__(self, ratio: float) -> None:
        self.ratio = ratio
        self._work = 0.0
        self._seconds = 0.0
        # Second moments; their weights are the squares of those of the first moments.
        self._steps = self._work_work = self._work_seconds = self._seconds_seconds = 0.0
        self._last = 0.0
        self.decode_seconds = 0.0
        """Seconds of a step that only decodes; 0 before there was one."""

    @property
    def tokens_per_second(self) -> float:
        """Speed for tokens at the beginning of a prompt; 0 before any prompt was computed."""
        return self._work / self._seconds if self._seconds > 0 else 0.0

    def error(self, now: float) -> float:
        """Return the relative standard error of the speed, 0 to `MAX_ERROR`.

        It follows from the spread of the steps, and grows with the time from the last step to `now`, in
        seconds.
        """
        speed, steps = self.tokens_per_second, self._steps
        if speed <= 0 or steps <= 1.0:
            return MAX_ERROR
        residual = self._work_work - 2 * speed * self._work_seconds + speed**2 * self._seconds_seconds
        spread = math.sqrt(max(0.0, residual) * steps / (steps - 1)) / self._work
        doublings = min(max(0.0, now - self._last) / DOUBLING_SECONDS, 64.0)
        return min(MAX_ERROR, spread * math.exp2(doublings))

    def observe(self, schedule: Schedule, seconds: float, now: float) -> None:
        """Record that `schedule` took `seconds` on the device and ended at second `now`."""
        work = sum(prefill_work(piece.start, piece.stop, self.ratio) for piece in schedule.pieces)
        if not work:
            old = self.decode_seconds
            self.decode_seconds = old + DECODE_SHARE * (seconds - old) if old else seconds
            return
        prompt_seconds = max(seconds - self.decode_seconds, MIN_PROMPT_SHARE * seconds)
        self._work = FADING * self._work + work
        self._seconds = FADING * self._seconds + prompt_seconds
        fading_squared = FADING * FADING
        self._steps = fading_squared * self._steps + 1
        self._work_work = fading_squared * self._work_work + work * work
        self._work_seconds = fading_squared * self._work_seconds + work * prompt_seconds
        self._seconds_seconds = fading_squared * self._seconds_seconds + prompt_seconds * prompt_seconds
        self._last = now
