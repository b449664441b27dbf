"""Scores of an answer as it was served, and what it depends on, for an audit: checkpoints and drafts.

The core records them while the sequence runs; the audits read them once it has ended.
"""

import math
from typing import NamedTuple

from mamba_server.cache import Lineage
from mamba_server.wire import TokenLogprobs


class Resumption(NamedTuple):
    """Checkpoint from which a sequence resumed at its start, or after a preemption.

    `known_tokens` is the number of its tokens at that time, output included.
    """

    known_tokens: int
    depth: int
    lineage: Lineage | None


class ServedScores:
    """Collects the log-probabilities of the tokens of one answer, for a later audit.

    `first` says from which checkpoint the prompt was resumed.
    """

    __slots__ = ("accepted", "logprobs", "resumptions")

    def __init__(self, first: Resumption) -> None:
        self.logprobs: list[float] = []
        """Log-probability of each output token; NaN where the step computed none."""
        self.resumptions = [first]
        """Checkpoints in the order of their use: after a preemption a sequence resumes again."""
        self.accepted = 0
        """Tokens that were drafted before they were sampled."""

    @property
    def audits(self) -> bool:
        """Whether there is something to audit: the answer resumed, or had drafts."""
        return self.accepted > 0 or any(each.depth for each in self.resumptions)

    def take(self, score: TokenLogprobs | None, *, requested: bool) -> TokenLogprobs | None:
        """Record the score of a token; return it if the client `requested` log-probabilities, else None."""
        self.logprobs.append(math.nan if score is None else score.logprob)
        return score if requested else None
