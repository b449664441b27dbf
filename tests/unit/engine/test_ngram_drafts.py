"""Drafts by look-up: what is proposed, and when drafts are left out."""

import numpy as np
import pytest

from mamba_server.engine.sequences.schedule import Draft, Schedule
from mamba_server.engine.sequences.sequence import Sequence
from mamba_server.engine.speculation.ngram import continuation
from mamba_server.engine.speculation.ngram_drafts import NgramDrafts
from mamba_server.engine.speculation.step_costs import FORGOTTEN_AFTER, StepCosts
from mamba_server.wire import SamplingParams

NONE = np.empty(0, np.int32)


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def test_a_draft_continues_the_earlier_place_that_shares_most() -> None:
    text = ids(9, 1, 2, 3, 50, 51, 8, 1, 2, 3, 60, 61, 9, 1, 2, 3)

    assert continuation(text, 2).tolist() == [50, 51], "9 1 2 3 occurs once; 1 2 3 later, with less before it"


def test_of_equal_places_the_latest_counts() -> None:
    assert continuation(ids(1, 2, 3, 50, 7, 1, 2, 3, 60, 7, 8, 1, 2, 3), 1).tolist() == [60]


def test_a_text_that_repeats_itself_is_continued_round() -> None:
    assert continuation(ids(4, 5, 6, 4, 5, 6, 4, 5), 7).tolist() == [6, 4, 5, 6, 4, 5, 6]


@pytest.mark.parametrize("text", [ids(), ids(1), ids(1, 2), ids(1, 2, 3), ids(1, 2, 9, 4, 1, 2)])
def test_two_tokens_in_common_are_no_draft(text: np.ndarray) -> None:
    assert not len(continuation(text, 4))


def sequence(text: list[int], room: int = 400) -> Sequence:
    made = Sequence("r", 0, ids(*text), SamplingParams(max_tokens=room, ignore_eos=True), order=0)
    made.make_room()
    return made


def simulate(drafts: NgramDrafts, answer: list[int], row_cost: float, tokens: int = 300) -> tuple[float, int]:
    """Serve one answer; a step takes 1 and `row_cost` for each drafted row. Return its time and its steps."""
    each = sequence([1, 2, 3, 4, 5, 6, 7, 8] * 2)
    seconds, steps = 0.0, 0
    while each.outputs < tokens:
        proposed = {} if drafts.rest.goes_on([each]) else drafts.propose([each])
        draft = proposed.get(0, NONE)
        seconds, steps = seconds + 1.0 + row_cost * len(draft), steps + 1
        truth = answer[each.outputs : each.outputs + len(draft) + 1]
        accepted = 0
        while accepted < min(len(draft), len(truth) - 1) and draft[accepted] == truth[accepted]:
            accepted += 1
        for token in truth[: accepted + 1]:
            each.token_ids[each.known_tokens] = token
            each.known_tokens += 1
        drawn = (Draft(0, 0, draft),) if len(draft) else ()
        if len(draft):
            drafts.checked(each, len(draft), accepted)
        drafts.step_ended(Schedule(steps, ids(0), ids(0), [each], [], drawn), 1.0 + row_cost * len(draft))
    return seconds, steps


COPY = [1, 2, 3, 4, 5, 6, 7, 8] * 50
RANDOM = np.random.default_rng(5).integers(100, 30_000, 400).tolist()
TRAPS = [token for start in range(60) for token in (1, 2, 3, 4, 5, 1000 + start)]
"""Places that look like copies and go on differently."""


def test_a_copied_answer_takes_far_fewer_steps() -> None:
    seconds, steps = simulate(NgramDrafts(7, 4), COPY, row_cost=0.2)

    assert steps < 60
    assert seconds < 300 / 2


@pytest.mark.parametrize("answer", [RANDOM, TRAPS], ids=["nothing is found", "what is found is wrong"])
@pytest.mark.parametrize("row_cost", [0.05, 0.3, 1.0])
def test_where_drafts_fail_they_are_left_out_and_cost_next_to_nothing(
    answer: list[int], row_cost: float
) -> None:
    seconds, _ = simulate(NgramDrafts(7, 4), answer, row_cost)

    assert seconds <= 300 / 0.98


def test_drafts_are_left_out_where_a_row_costs_as_much_as_a_step() -> None:
    drafts = NgramDrafts(7, 4)
    seconds, _ = simulate(drafts, COPY, row_cost=1.2)

    assert seconds <= 300 / 0.94


def test_drafts_return_when_the_answer_begins_to_copy() -> None:
    _, steps = simulate(NgramDrafts(7, 4), RANDOM[:150] + COPY, row_cost=0.2)

    assert steps < 150 + 80


def test_without_a_choice_every_find_is_proposed() -> None:
    drafts = NgramDrafts(7, 4, always=True)
    seconds, _ = simulate(drafts, COPY, row_cost=1.2)

    assert seconds > 300
    assert drafts.counters()["accepted_draft_tokens_total{kind=ngram}"] > 200


def test_an_expensive_size_is_measured_again_after_a_while() -> None:
    costs = StepCosts()
    costs.observe(1, 0, 1.0)
    for _ in range(2):
        costs.observe(1, 4, 9.0)
    assert costs.ratio(1, 4) == 9.0
    for _ in range(FORGOTTEN_AFTER):
        costs.refuse(1, 4)
    assert costs.ratio(1, 4) < 2.0
