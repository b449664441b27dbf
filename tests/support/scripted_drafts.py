"""Drafts that are right for as long as chance decides, for runs whose true answers are known."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from mamba_server.cache import Tokens
from mamba_server.engine.scheduling.draft_rows import Rest
from mamba_server.engine.sequences.schedule import Schedule
from mamba_server.engine.sequences.sequence import Sequence


class ScriptedDrafts:
    """Drafts of 0 to `most` tokens, of which 0 to all are those of `truth(sequence, count)`.

    `truth` returns the tokens that follow the known ones of a sequence; fewer are fine.
    """

    def __init__(self, most: int, truth: Callable[[Sequence, int], list[int]], rng: random.Random) -> None:
        self.most, self._truth, self._rng = most, truth, rng
        self.drafted = self.accepted = self.absorbed = 0
        self.rest = Rest()

    def wanted(self) -> bool:
        return self._rng.random() < 0.7

    def propose(self, decodes: list[Sequence]) -> dict[int, Tokens]:
        proposed = {}
        for index, sequence in enumerate(decodes):
            count = self._rng.randint(0, self.most)
            if sequence.in_flight or not count:
                continue
            right = self._rng.choice([0, 1, count, self._rng.randint(0, count)])
            true = self._truth(sequence, count)[:right]
            wrong = [self._rng.randrange(1, 90) for _ in range(count - len(true))]
            proposed[index] = np.array([*true, *wrong], np.int32)
        return proposed

    def checked(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        self.drafted, self.accepted = self.drafted + drafted, self.accepted + accepted

    def step_ended(self, schedule: Schedule, seconds: float) -> None:
        self.absorbed += sum(each.count for each in schedule.absorbed)

    def counters(self) -> dict[str, float]:
        return {}
