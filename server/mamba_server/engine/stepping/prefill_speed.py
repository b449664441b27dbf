"""How fast this engine computes prompts, how sure that is, and how long a step of its answers takes. Pure:
times are told.

Read by those who choose between engines. Work over time of the last steps with prompts in them, so that a
large step weighs more than a small one; old steps fade. What a step takes that only decodes is what any step
takes whatever is in it: it is not the prompts', or an engine of short prompts would pass for a slow one.
"""

import math

from mamba_planner.arithmetic import prefill_work
from mamba_server.engine.sequences.schedule import Schedule

FADING = 0.95
"""What a step counts for after the next one."""
DECODE_SHARE = 0.2
"""A decode step moves the estimate of their time by so much of the difference."""
LEAST_SHARE = 0.2
"""Of a step's time that its prompt tokens take at least: what decoding took before may be out of date."""
UNSURE = 1.0
"""The error of a speed of which nothing is known, and the largest that is told."""
DOUBT_DOUBLES = 15.0
"""Seconds without a prompt in which the error doubles: what slowed the engine may be gone."""


class PrefillSpeed:
    """`ratio`: what attention adds to a token's work for each token before it (`attention_ratio`)."""

    def __init__(self, ratio: float) -> None:
        self.ratio = ratio
        self._work = 0.0
        self._seconds = 0.0
        # Second moments, whose weights are the squares of those of the first.
        self._steps = self._work_work = self._work_seconds = self._seconds_seconds = 0.0
        self._last = 0.0
        self.decode_seconds = 0.0
        """Of a step that only decodes; 0 before there was one."""

    @property
    def tokens_per_second(self) -> float:
        """Of tokens at the beginning of a prompt; 0 before any prompt was computed."""
        return self._work / self._seconds if self._seconds > 0 else 0.0

    def error(self, now: float) -> float:
        """Standard error of the speed by the speed, from how much the steps differ: 0 to `UNSURE`."""
        speed, steps = self.tokens_per_second, self._steps
        if speed <= 0 or steps <= 1.0:
            return UNSURE
        apart = self._work_work - 2 * speed * self._work_seconds + speed**2 * self._seconds_seconds
        spread = math.sqrt(max(0.0, apart) * steps / (steps - 1)) / self._work
        doublings = min(max(0.0, now - self._last) / DOUBT_DOUBLES, 64.0)
        return min(UNSURE, spread * math.exp2(doublings))

    def observe(self, schedule: Schedule, seconds: float, now: float) -> None:
        """`schedule` took `seconds` on the device and ended at second `now`."""
        work = sum(prefill_work(piece.start, piece.stop, self.ratio) for piece in schedule.pieces)
        if not work:
            old = self.decode_seconds
            self.decode_seconds = old + DECODE_SHARE * (seconds - old) if old else seconds
            return
        taken = max(seconds - self.decode_seconds, LEAST_SHARE * seconds)
        self._work = FADING * self._work + work
        self._seconds = FADING * self._seconds + taken
        again = FADING * FADING
        self._steps = again * self._steps + 1
        self._work_work = again * self._work_work + work * work
        self._work_seconds = again * self._work_seconds + work * taken
        self._seconds_seconds = again * self._seconds_seconds + taken * taken
        self._last = now
