"""How fast this engine computes prompts, and how long a step of its answers takes. Pure: times are told.

Read by those who choose between engines. Work over time of the last steps with prompts in them, less what
decoding beside them took, so that a large step weighs more than a small one; old steps fade.
"""

from mamba_planner.prefill_work import prefill_work
from mamba_server.engine.schedule import Schedule

FADING = 0.95
"""What a step counts for after the next one."""
DECODE_SHARE = 0.2
"""A decode step moves the estimate of their time by so much of the difference."""
LEAST_SHARE = 0.2
"""Of a step's time that its prompt tokens take at least: what decoding took before may be out of date."""


class PrefillSpeed:
    """`ratio`: what attention adds to a token's work for each token before it (`attention_ratio`)."""

    def __init__(self, ratio: float) -> None:
        self.ratio = ratio
        self._work = 0.0
        self._seconds = 0.0
        self.decode_seconds = 0.0
        """Of a step that only decodes; 0 before there was one."""

    @property
    def tokens_per_second(self) -> float:
        """Of tokens at the beginning of a prompt; 0 before any prompt was computed."""
        return self._work / self._seconds if self._seconds > 0 else 0.0

    def observe(self, schedule: Schedule, seconds: float) -> None:
        """`schedule` took `seconds` on the device."""
        work = sum(prefill_work(piece.start, piece.stop, self.ratio) for piece in schedule.pieces)
        if not work:
            old = self.decode_seconds
            self.decode_seconds = old + DECODE_SHARE * (seconds - old) if old else seconds
            return
        beside = self.decode_seconds if schedule.decodes else 0.0
        taken = max(seconds - beside, LEAST_SHARE * seconds)
        self._work = FADING * self._work + work
        self._seconds = FADING * self._seconds + taken
