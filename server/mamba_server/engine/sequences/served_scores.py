"""Scores of an answer as it was served, and the checkpoints that it resumed from, for an audit.

The core records them while the sequence runs; the audits read them once it has ended.
"""

import math
from typing import NamedTuple

from mamba_server.cache import Lineage
from mamba_server.wire import TokenLogprobs


class Resumption(NamedTuple):
    """Checkpoint from which a sequence resumed. `known_tokens`: its tokens at that time, output included."""

    known_tokens: int
    depth: int
    lineage: Lineage | None


class ServedScores:
    """Log-probabilities of the tokens of one answer. `first`: the checkpoint that its prompt resumed from."""

    __slots__ = ("logprobs", "resumptions")

    def __init__(self, first: Resumption) -> None:
        self.logprobs: list[float] = []
        """Log-probability of each output token; NaN where the step computed none."""
        self.resumptions = [first]
        """Checkpoints in the order of their use: after a preemption a sequence resumes again."""

    def take(self, score: TokenLogprobs | None, *, requested: bool) -> TokenLogprobs | None:
        """Record the score of a token; return it if the client requested log-probabilities."""
        self.logprobs.append(math.nan if score is None else score.logprob)
        return score if requested else None
