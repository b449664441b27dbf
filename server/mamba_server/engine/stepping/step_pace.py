"""Number of tokens that a step may compute to take about the target time. Pure: times are parameters.

While answers are being written, every step is a gap between two of their tokens, so prompts are computed in
pieces that fill the rest of a step and no more. Their size follows from the last steps: the time of those
that only decoded, and the time of a prompt token beyond that. Medians of a few steps, so that one slow step
changes nothing; a fixed cost of a piece needs no term of its own, as the sizes converge where a step takes
the target time.
"""

from collections import deque
from statistics import median

STEP_TIME = {"cpu": 0.2, "cuda": 0.05}
"""Default target in seconds of a step while answers are being written."""
MEDIAN_STEPS = 7
"""Number of last steps of each kind whose median counts."""
MIN_PROMPT_SHARE = 0.2
"""Least share of a step's time that counts for its prompt tokens: the measured decode time may be out of
date."""
MAX_GROWTH = 2
"""Largest next piece as a multiple of the last one: an estimate from small pieces is not trusted for large
ones."""


class StepPace:
    """Chooses how many tokens a step of one engine may compute, so that it takes about `target` seconds.

    `chunk` is the smallest piece of a prompt, and `most` the largest number of tokens of a step.
    """

    def __init__(self, target: float, chunk: int, most: int) -> None:
        self._target = target
        self._chunk = chunk
        self._most = most
        self._decode_steps: deque[float] = deque(maxlen=MEDIAN_STEPS)
        self._token_costs: deque[float] = deque(maxlen=MEDIAN_STEPS)
        self._last_piece = 0

    def tokens(self, decodes: int) -> int:
        """Return the tokens that a step with `decodes` decoding sequences may compute, including these."""
        if not decodes:
            return self._most
        if not self._token_costs:
            return decodes + self._chunk
        remaining = self._target - self._decode_time
        fitting = int(remaining / median(self._token_costs))
        within = min(fitting, MAX_GROWTH * max(self._last_piece, self._chunk))
        return min(decodes + max(within, self._chunk), self._most)

    def observe(self, decodes: int, prefilled: int, seconds: float) -> None:
        """Record that a step of `decodes` decodes and `prefilled` prompt tokens took `seconds`."""
        if not prefilled:
            self._decode_steps.append(seconds)
        elif prefilled >= self._chunk or not self._token_costs:
            prompt_seconds = seconds - self._decode_time if decodes else seconds
            self._token_costs.append(max(prompt_seconds, MIN_PROMPT_SHARE * seconds, 1e-9) / prefilled)
            self._last_piece = prefilled

    @property
    def _decode_time(self) -> float:
        return median(self._decode_steps) if self._decode_steps else 0.0
