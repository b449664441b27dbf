"""How many tokens a step may compute so that it takes about the wanted time. Pure: times are told.

While answers are being written every step is a gap between two of their tokens, so prompts are computed in
pieces that fill the rest of a step and no more. What that is follows from the last steps: how long those took
that only decoded, and what a prompt token took beyond that. Medians of a few, so that one slow step changes
nothing; a fixed cost of a piece needs no term of its own, as the sizes settle where a step takes the time.
"""

from collections import deque
from statistics import median

STEP_TIME = {"cpu": 0.2, "cuda": 0.05}
"""Seconds of a step while answers are being written, where nobody set them."""
RECENT = 7
"""Steps of each kind that are looked at."""
LEAST_SHARE = 0.2
"""Of a step's time that its prompt tokens take at least: what decoding took before may be out of date."""
MOST_GROWTH = 2
"""Times the last piece that the next may be: a guess from small pieces is not trusted for large ones."""


class StepPace:
    """`target`: seconds of a step; `chunk`: the smallest piece; `most`: most tokens of a step."""

    def __init__(self, target: float, chunk: int, most: int) -> None:
        self._target = target
        self._chunk = chunk
        self._most = most
        self._decode_steps: deque[float] = deque(maxlen=RECENT)
        self._token_costs: deque[float] = deque(maxlen=RECENT)
        self._last_piece = 0

    def tokens(self, decodes: int) -> int:
        """What a step with `decodes` decoding sequences may compute, they included."""
        if not decodes:
            return self._most
        if not self._token_costs:
            return decodes + self._chunk
        left = self._target - self._decode_time
        fitting = int(left / median(self._token_costs))
        within = min(fitting, MOST_GROWTH * max(self._last_piece, self._chunk))
        return min(decodes + max(within, self._chunk), self._most)

    def observe(self, decodes: int, prefilled: int, seconds: float) -> None:
        """A step of `decodes` decodes and `prefilled` prompt tokens took `seconds` on the device."""
        if not prefilled:
            self._decode_steps.append(seconds)
        elif prefilled >= self._chunk or not self._token_costs:
            taken = seconds - self._decode_time if decodes else seconds
            self._token_costs.append(max(taken, LEAST_SHARE * seconds, 1e-9) / prefilled)
            self._last_piece = prefilled

    @property
    def _decode_time(self) -> float:
        return median(self._decode_steps) if self._decode_steps else 0.0
