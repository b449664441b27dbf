"""Drafts by look-up or by the model's head: each step has those that save the most time, or none.

An answer takes the time of its steps: one for the step, a part for each row of drafts, and a part for each
token that the head drafts.
"""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mamba_server.cache import Tokens
from mamba_server.engine.sequences.schedule import Absorption, Draft, Schedule
from mamba_server.engine.sequences.sequence import Sequence
from mamba_server.engine.speculation.auto_drafts import AutoDrafts
from mamba_server.engine.speculation.head_drafts import HeadDrafts, HeadRequest
from mamba_server.engine.speculation.loss_limit import CREDIT, SPENT_A_STEP
from mamba_server.engine.speculation.ngram_drafts import NgramDrafts
from mamba_server.wire import SamplingParams

ROW, TURN = 0.15, 0.05
"""Time of a row of drafts, and of a token that the head drafts, in steps."""
LENGTH = 192
RNG = np.random.default_rng(7)
PROMPT = RNG.integers(10, 30_000, 64).tolist()
RANDOM = RNG.integers(10, 30_000, 2 * LENGTH).tolist()
COPY = PROMPT * 8


@dataclass
class Row:
    """One sequence of a batch, its true answer, and how much of it the head foresees at each place."""

    sequence: Sequence
    answer: list[int]
    foresight: list[int]

    @classmethod
    def of(cls, answer: list[int], share: float, seed: int) -> "Row":
        """Return a row whose head is right with a probability of `share` at each place."""
        rng = np.random.default_rng(seed)
        foresight = [token if rng.random() < share else 5 for token in answer]
        params = SamplingParams(max_tokens=LENGTH, ignore_eos=True)
        sequence = Sequence(f"{seed}", 0, np.array(PROMPT, np.int32), params, order=seed)
        sequence.make_room()
        return cls(sequence, answer, foresight)


@dataclass
class Batch:
    """Rows that decode together; `seconds` counts the time of their steps."""

    rows: list[Row]
    head_row: float = 0.0
    """Time of each row that the head drafts for, in addition."""
    draft: float = 0.0
    """Time of a step with drafts in addition to its rows, and of one that absorbs."""
    _absorbs: bool = False
    seconds: float = 0.0
    steps: int = 0
    drafting: float = 0.0
    steps_without_reading: int = 0

    def serve(self, drafts: AutoDrafts | NgramDrafts | HeadDrafts) -> float:
        """Serve the whole answers and return the time of all steps."""
        head = getattr(drafts, "head", drafts)
        if isinstance(head, HeadDrafts):
            head.room = lambda _, most: most
            head.compute = self._foresee
        while decodes := [row for row in self.rows if row.sequence.outputs < LENGTH]:
            self._step(drafts, decodes)
        return self.seconds

    def _foresee(self, request: HeadRequest) -> list[Tokens]:
        most = int(request.counts.max())
        self.drafting = TURN * most + self.head_row * len(request.counts)
        return [
            np.array(self.rows[row].foresight[self.rows[row].sequence.outputs :][:count], np.int32)
            for row, count in zip(request.rows.tolist(), request.counts.tolist(), strict=True)
        ]

    def _step(self, drafts: AutoDrafts | NgramDrafts | HeadDrafts, rows: list[Row]) -> None:
        self.drafting = 0.0
        for row in rows:
            place: Any = SimpleNamespace(row=self.rows.index(row), depth=row.sequence.known_tokens - 1)
            row.sequence.allocation = place
        decodes = [row.sequence for row in rows]
        proposed = {} if drafts.rest.goes_on(decodes) else drafts.propose(decodes)
        self.steps_without_reading += isinstance(drafts, AutoDrafts) and not drafts.reads()
        work = 1.0 + ROW * sum(map(len, proposed.values())) + self.drafting
        absorbed = (Absorption(0, 0, 1, 5),) * self._absorbs
        work += self.draft * (bool(proposed) + len(absorbed))
        self._absorbs = False
        self.seconds, self.steps = self.seconds + work, self.steps + 1
        for index, row in enumerate(rows):
            draft = proposed.get(index, np.empty(0, np.int32)).tolist()
            truth = row.answer[row.sequence.outputs :][: len(draft) + 1]
            accepted = 0
            while accepted < len(draft) and draft[accepted] == truth[accepted]:
                accepted += 1
            for token in truth[: accepted + 1]:
                row.sequence.token_ids[row.sequence.known_tokens] = token
                row.sequence.known_tokens += 1
                if row.sequence.outputs == LENGTH:
                    break
            if draft:
                drafts.checked(row.sequence, len(draft), accepted)
                self._absorbs = self._absorbs or accepted > 0
        drawn = tuple(Draft(index, 0, tokens) for index, tokens in proposed.items())
        none, members = np.zeros(len(rows), np.int32), [row.sequence for row in rows]
        drafts.step_ended(Schedule(self.steps, none, none, members, [], drawn, absorbed), work)


def auto() -> AutoDrafts:
    return AutoDrafts(7, 4, HeadDrafts(7, 4))


def alone(answer: list[int], share: float, drafts: AutoDrafts | NgramDrafts | HeadDrafts) -> float:
    """Return the time of eight answers, one after another, by one engine."""
    return sum(Batch([Row.of(answer, share, seed)]).serve(drafts) for seed in range(8))


@pytest.mark.parametrize(("share", "part"), [(0.6, 0.9), (0.8, 0.95), (0.95, 0.95)])
def test_a_head_that_is_mostly_right_is_used_nearly_as_well_as_by_the_best_fixed_number(
    share: float, part: float
) -> None:
    best = min(alone(RANDOM, share, HeadDrafts(most, 4)) for most in (1, 2, 3, 4, 5, 7))

    assert alone(RANDOM, share, auto()) <= best / part


def test_a_head_that_is_never_right_is_left_out_and_stops_reading() -> None:
    drafts, batches = auto(), [Batch([Row.of(RANDOM, 0.0, seed)]) for seed in range(3)]

    assert all(batch.serve(drafts) <= LENGTH / 0.98 for batch in batches)
    assert batches[2].steps_without_reading == batches[2].steps
    assert batches[1].seconds + batches[2].seconds < 2 * LENGTH + 0.5, "its drafts are not computed to try it"


@pytest.mark.parametrize("share", [0.0, 0.7])
def test_answers_that_copy_have_look_ups_although_the_head_is_right_less_often(share: float) -> None:
    drafts = auto()

    assert alone(COPY, share, drafts) <= alone(COPY, share, NgramDrafts(7, 4)) / 0.9
    assert drafts.counters()["accepted_draft_tokens_total{kind=ngram}"] > 800


def test_a_head_returns_when_it_would_be_right_again() -> None:
    drafts = auto()
    alone(RANDOM, 0.0, drafts)
    assert not drafts.reads()

    times = [Batch([Row.of(RANDOM, 0.9, seed)]).serve(drafts) for seed in range(3)]
    assert times[2] < LENGTH / 1.3
    assert drafts.reads()


def test_many_sequences_have_no_drafts_of_the_head_where_each_row_costs_as_much_as_a_token() -> None:
    batch = Batch([Row.of(RANDOM, 0.5, seed) for seed in range(8)], head_row=0.5)
    drafts = auto()

    assert batch.serve(drafts) <= LENGTH / 0.9
    assert drafts.counters()["draft_tokens_total{kind=mtp}"] < 100


def beginnings_that_repeat(length: int, seed: int) -> list[int]:
    """Return an answer that repeats beginnings of `length` tokens of the prompt and goes on differently."""
    rng = np.random.default_rng(seed)
    answer: list[int] = []
    while len(answer) < 2 * LENGTH:
        start = int(rng.integers(0, len(PROMPT) - length))
        answer += [*PROMPT[start : start + length], int(rng.integers(30_000, 60_000))]
    return answer


@pytest.mark.parametrize(("length", "most"), [(4, 0.0015), (5, 0.01), (6, 0.01), (8, 0.01)])
def test_beginnings_that_go_on_differently_cost_a_percent_at_most_behind_a_copy(
    length: int, most: float
) -> None:
    drafts = auto()
    for seed in range(6):
        copied = Batch([Row.of(COPY, 0.0, seed)], draft=0.3).serve(drafts)
        others = Batch([Row.of(beginnings_that_repeat(length, seed), 0.0, seed)], draft=0.3).serve(drafts)

        assert copied < LENGTH / 2.5
        assert others <= LENGTH * (1.0 + most)


@pytest.mark.parametrize("seed", range(20))
def test_no_answer_loses_more_than_its_credit_whatever_its_text_and_head_promise(seed: int) -> None:
    drafts, rng = auto(), np.random.default_rng(seed)
    for _ in range(12):
        answer = (
            COPY if rng.random() < 0.3 else RANDOM if rng.random() < 0.3
            else beginnings_that_repeat(int(rng.integers(3, 16)), seed)
        )  # fmt: skip
        cut = int(rng.integers(0, LENGTH))
        mixed = [*answer[:cut], *RANDOM[cut:]] if rng.random() < 0.5 else [*RANDOM[:cut], *answer]
        share = float(rng.choice([0.0, 0.1, 0.3, 0.5]))
        batch = Batch([Row.of(mixed, share, int(rng.integers(1 << 30)))])

        assert batch.serve(drafts) <= LENGTH + 2 * CREDIT + SPENT_A_STEP * LENGTH
