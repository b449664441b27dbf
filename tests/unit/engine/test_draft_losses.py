"""Drafts cost little where they fail: few steps lose, and steps without drafts hardly look for them."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mamba_server.cache import Tokens
from mamba_server.engine.scheduling.draft_rows import DraftRows, Rest
from mamba_server.engine.sequences.draft_record import DraftRecord
from mamba_server.engine.sequences.schedule import Draft, Schedule
from mamba_server.engine.sequences.sequence import Sequence
from mamba_server.engine.speculation.loss_limit import CREDIT, SPENT_A_STEP, LossLimit
from mamba_server.engine.speculation.ngram_drafts import NgramDrafts, record_of
from mamba_server.engine.speculation.step_costs import StepCosts
from mamba_server.engine.stepping.speculation import DraftSwitch, Speculation
from mamba_server.wire import SamplingParams

RANDOM = np.random.default_rng(3).integers(100, 30_000, 600).astype(np.int32)


class CountedLooks(NgramDrafts):
    """Drafts that count how often they are looked for."""

    looks = 0

    def _looked_for(self, decodes: list[Sequence]) -> dict[int, Tokens]:
        self.looks += 1
        return super()._looked_for(decodes)


class CountedComparisons(NgramDrafts):
    """Drafts that count how often an answer is searched."""

    comparisons = 0

    def _compare(self, sequence: Sequence, record: DraftRecord) -> None:
        self.comparisons += 1
        super()._compare(sequence, record)


class Promising(NgramDrafts):
    """Drafts that promise to be right, whatever has become of those before."""

    def _promises(self, decodes: list[Sequence], forced: dict[int, Tokens]) -> bool:
        for each in decodes:
            record_of(each).hits = 1.0
        return super()._promises(decodes, forced)

    def _expected(self, sequence: Sequence, drafts: int) -> float:
        return float(drafts)

    def _look_up(self, decodes: list[Sequence], forced: dict[int, Tokens]) -> dict[int, Tokens]:
        return dict.fromkeys(range(len(decodes)), RANDOM[: self.most])


def sequence(order: int) -> Sequence:
    each = Sequence(f"{order}", 0, RANDOM[:20], SamplingParams(max_tokens=500, ignore_eos=True), order=order)
    each.make_room()
    return each


def step(drafts: NgramDrafts, sequences: list[Sequence]) -> None:
    """Let each sequence get the next of its random tokens, of which nothing can be foreseen."""
    if not drafts.rest.goes_on(sequences):
        assert not drafts.propose(sequences)
    for each in sequences:
        each.token_ids[each.known_tokens] = RANDOM[each.known_tokens]
        each.known_tokens += 1
    rows = np.zeros(len(sequences), np.int32)
    drafts.step_ended(Schedule(1, rows, rows, sequences, []), 1.0)


def test_steps_in_which_nothing_can_be_foreseen_hardly_look_for_drafts() -> None:
    drafts, only = CountedLooks(7, 4), sequence(0)
    for _ in range(400):
        step(drafts, [only])

    assert drafts.looks < 400 / 10


def test_drafts_of_a_sequence_that_joins_are_looked_for_at_once() -> None:
    drafts, first, second = NgramDrafts(7, 4), sequence(0), sequence(1)
    for _ in range(100):
        step(drafts, [first])
    step(drafts, [first, second])

    assert second.draft_record is not None


def test_short_answers_of_which_nothing_can_be_foreseen_are_searched_once() -> None:
    drafts = CountedComparisons(7, 4)
    searched = []
    for order in range(20):
        short = sequence(order)
        while short.outputs < 25:
            step(drafts, [short])
        searched.append(drafts.comparisons - sum(searched))

    assert searched[0] == 2
    assert searched[-10:] == [1] * 10


@pytest.mark.parametrize(
    "waits", [False, True], ids=["nothing waits", "inputs of a row that skips the step wait"]
)
def test_steps_ask_for_drafts_again_where_accepted_ones_wait_to_be_absorbed(waits: bool) -> None:
    lanes = SimpleNamespace(idle=not waits, waiting=np.zeros_like, holders=lambda rows: [])
    cache: Any = SimpleNamespace(replay=lanes)
    drafts, only, row = CountedLooks(7, 4), sequence(0), np.zeros(1, np.int32)
    planner = DraftRows(cache, drafts)
    for _ in range(3):
        assert planner.plan([only], row) == ((), ())

    assert drafts.looks == (3 if waits else 1)


def test_drafts_end_once_they_have_lost_some_steps_and_return_when_they_would_gain() -> None:
    limit, lost = LossLimit(), 0.0
    while limit.affords(0.6):
        limit.drafted(1.0, 1.6)
        lost += 0.6
    assert CREDIT - 0.6 < lost <= CREDIT

    limit.foreseen(1.0, 1.5)
    assert not limit.affords(0.6), "a draft that would have lost shows no gain"
    limit.foreseen(7.0, 2.0)
    assert limit.affords(0.6)


def test_promises_that_nothing_keeps_are_believed_once_in_an_answer() -> None:
    limit, lost = LossLimit(), 0.0
    for _ in range(100):
        limit.foreseen(7.0, 2.0)
        if limit.affords(1.0):
            limit.drafted(1.0, 2.0)
            lost += 1.0
    assert lost <= 2 * CREDIT

    limit.answer_began()
    limit.foreseen(7.0, 2.0)
    assert limit.affords(1.0)


def test_no_answer_loses_what_another_one_has_gained() -> None:
    limit = LossLimit()
    for _ in range(10):
        limit.drafted(7.0, 2.0)
    assert limit.affords(2 * CREDIT)

    limit.answer_began()
    assert not limit.affords(CREDIT + 0.1)


def test_wrong_drafts_that_go_on_promising_a_gain_are_left_out_in_time() -> None:
    drafts, only, lost, row, steps = Promising(7, 4), sequence(0), 0.0, np.zeros(1, np.int32), 400
    for _ in range(steps):
        proposed = {} if drafts.rest.goes_on([only]) else drafts.propose([only])
        schedule = Schedule(
            1, row, row, [only], [], tuple(Draft(index, 0, tokens) for index, tokens in proposed.items())
        )
        seconds = 1.0 + sum(map(len, proposed.values())) / 7
        for tokens in proposed.values():
            drafts.checked(only, len(tokens), 0)
        drafts.step_ended(schedule, seconds)
        only.token_ids[only.known_tokens] = RANDOM[only.known_tokens]
        only.known_tokens += 1
        lost += seconds - 1.0

    assert 0 < lost <= 1.5 * CREDIT + SPENT_A_STEP * steps


def test_drafts_that_always_lose_cost_a_small_share_of_all_steps() -> None:
    limit, lost, steps = LossLimit(), 0.0, 20_000
    for _ in range(steps):
        limit.steps_ended(1)
        if limit.affords(0.5):
            limit.drafted(1.0, 1.5)
            lost += 0.5

    assert lost <= CREDIT + SPENT_A_STEP * steps
    assert SPENT_A_STEP <= 0.01


def test_the_cost_of_drafts_does_not_follow_other_programs_of_the_machine() -> None:
    costs = StepCosts()
    for _ in range(7):
        costs.observe(1, 0, 1.0)
    for seconds in (9.0, 1.3, 30.0, 1.2, 40.0, 1.4, 1.5):
        costs.observe(1, 4, seconds)
    assert costs.ratio(1, 4) == 1.3

    for _ in range(7):
        costs.observe(1, 0, 10.0)
    assert costs.ratio(1, 4) == 1.3, "the machine is slower now, with drafts and without"


def test_the_first_step_with_drafts_whose_code_is_cold_counts_in_part_until_the_second() -> None:
    costs = StepCosts()
    costs.observe(1, 0, 1.0)
    costs.observe(1, 4, 5.0)
    assert costs.ratio(1, 4) == 3.0

    costs.observe(1, 4, 1.5)
    assert costs.ratio(1, 4) == 1.5


def test_what_a_form_leaves_no_choice_about_is_drafted_whatever_other_drafts_have_lost() -> None:
    drafts, only = NgramDrafts(7, 4), sequence(0)
    step(drafts, [only])
    drafts._losses.drafted(0.0, 2 * CREDIT)
    assert not drafts.propose([only])
    form: Any = SimpleNamespace(forced=lambda: [1, 2, 3])
    only.grammar = form

    drafts.propose([only])  # the rest of before
    for _ in range(4):
        proposed = drafts.propose([only])
    assert proposed[0].tolist() == [1, 2, 3]


class Recorded:
    """Source of drafts that keeps the seconds of steps."""

    most = 1

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.rest = Rest()

    def wanted(self) -> bool:
        return True

    def step_ended(self, _: Schedule, seconds: float) -> None:
        self.seconds.append(seconds)


def test_steps_of_one_thread_are_timed_by_its_own_work() -> None:
    source: Any = Recorded()
    readings = iter((5.0, 5.25))
    speculation = Speculation(DraftSwitch(source), lambda *_: lambda: None, lambda: next(readings))
    none = np.zeros(1, np.int32)

    speculation.step_began()
    speculation.step_ended(Schedule(1, none, none, [sequence(0)], [], (Draft(0, 0, none),)), 9.0)

    assert source.seconds == [0.25]
