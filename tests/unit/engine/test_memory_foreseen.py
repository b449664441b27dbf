"""Admission follows memory and the observed lengths, and hardly any sequence is preempted for it."""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gate_cases import LARGE
from mamba_server.engine.scheduling.answer_lengths import MAX_ANSWERS, AnswerLengths
from mamba_server.engine.scheduling.memory_forecast import MemoryForecast, SequenceGrowth
from step_load import LoadSetup, StepLoad

SIX_MIB = LoadSetup(
    slabs=96, pages_per_slab=4, rows=32, strategy="ExtraBuffer", prefix_caching=True, longest=4096
)
"""The shipped model's arena of 6 MiB: 95 slabs, three of them a sequence's slots."""


@dataclass(frozen=True)
class Lengths:
    """Tokens of prompts and answers, on average."""

    prompt: int
    answer: int


@dataclass
class Clients:
    """24 of them, each with one request at a time; `declared`: answers are as long as they asked for."""

    load: StepLoad
    lengths: Lengths
    declared: bool
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    asked: int = 0

    def ask(self) -> None:
        self.asked += 1
        prompt, answer = (
            self.rng.randint(mean * 2 // 5, mean * 8 // 5)
            for mean in (self.lengths.prompt, self.lengths.answer)
        )
        # Who does not say how long it will be: as far as the model goes.
        most = answer if self.declared else SIX_MIB.longest - prompt
        self.load.add(f"r{self.asked}", prompt, answer, most=most)

    def run(self, steps: int) -> float:
        """Return the average number of running requests over `steps` steps."""
        running = 0
        while self.asked < 24:
            self.ask()
        for _ in range(steps):
            for _ in self.load.step():
                self.ask()
            running += len(self.load.scheduler.decoding)
        return running / steps

    @property
    def recomputed(self) -> float:
        """The share of all tokens so far that were computed once more."""
        seen = self.load.scheduler.counters
        return seen.recomputed_tokens / (seen.prompt_tokens + self.load.core.generated_tokens)


SHORT, USUAL, LONG, READERS = Lengths(35, 25), Lengths(35, 250), Lengths(35, 2500), Lengths(350, 250)


def room_for(lengths: Lengths) -> float:
    """Return the mean number of requests in memory: 12 pages of slots, the prompt and half of the answer."""
    return min(380 / (12 + (lengths.prompt + lengths.answer / 2) / 16), 24)


CHANGES = [(USUAL, SHORT), (SHORT, READERS), (READERS, USUAL)]
"""Each kind of request comes after another one and before a third."""
if LARGE:
    CHANGES += [(USUAL, USUAL), (SHORT, USUAL), (USUAL, READERS)]


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_clients_whose_answers_end_as_they_like_fill_the_memory(before: Lengths, after: Lengths) -> None:
    clients = Clients(StepLoad(SIX_MIB), before, declared=False)
    for clients.lengths in (before, after):
        clients.run(900)  # until those that wait are of these lengths
        assert clients.run(600) >= 0.7 * room_for(clients.lengths)
    assert clients.recomputed <= 0.05


@pytest.mark.parametrize(
    ("before", "after", "steps"),
    [(SHORT, USUAL, 900), *([(USUAL, USUAL, 900), (USUAL, LONG, 6000)] if LARGE else [(USUAL, LONG, 4000)])],
)
def test_clients_that_get_as_much_as_they_asked_for_are_hardly_ever_preempted(
    before: Lengths, after: Lengths, steps: int
) -> None:
    clients = Clients(StepLoad(SIX_MIB), before, declared=True)
    clients.run(900)
    clients.lengths = after
    assert clients.run(steps) >= 0.6 * room_for(after)
    assert clients.recomputed <= 0.005


def test_before_any_answer_ended_the_expected_length_counts() -> None:
    assert AnswerLengths(256).expected(0, 4000) == 256


def test_lengths_that_ended_replace_what_was_expected() -> None:
    answers = AnswerLengths(2000)
    for length in [2000] * MAX_ANSWERS + [20] * MAX_ANSWERS:
        answers.ended(length)
    assert answers.expected(0, 4000) == 20


def test_an_answer_longer_than_any_before_is_taken_to_be_in_its_middle() -> None:
    answers = AnswerLengths(10)
    for _ in range(MAX_ANSWERS):
        answers.ended(10)
    assert answers.expected(400, 4000) == 801


def test_who_always_fills_what_was_asked_for_is_taken_at_his_word() -> None:
    answers = AnswerLengths(10)
    for length in range(100, 100 + MAX_ANSWERS):
        answers.ended(length, cut=True)
    assert [answers.expected(outputs, 2500) for outputs in (0, 150, 2400)] == [2500, 2500, 2500]
    assert answers.expected(0, 300) == 300


def test_answers_that_were_cut_say_nothing_of_how_long_others_become() -> None:
    answers = AnswerLengths(10)
    for length in [*range(200, 240), *[16] * (MAX_ANSWERS - 40)]:
        answers.ended(length, cut=length == 16)
    assert answers.expected(0, 4000) == 220
    assert answers.expected(0, 16) == 16
    # Of 21 that became longer than 218 the middle one.
    assert answers.expected(218, 4000) == 229


ENDED = st.lists(st.tuples(st.integers(1, 5000), st.booleans()), max_size=300)


@given(ENDED, st.integers(0, 6000), st.integers(1, 9000))
def test_more_is_always_expected_than_there_is_as_far_as_it_may_go(
    ended: list[tuple[int, bool]], outputs: int, most: int
) -> None:
    answers = AnswerLengths(100)
    for tokens, cut in ended:
        answers.ended(tokens, cut=cut)
    assert min(outputs + 1, most) <= answers.expected(outputs, most) <= most


def test_what_ends_soon_makes_room_for_what_grows_late() -> None:
    # Ten pages come back after 16 tokens; the newcomer wants 4 at once and 8 more in 128 tokens.
    running = [SequenceGrowth(16, 0.0, 10)]
    assert MemoryForecast(6, 16, running).admits(SequenceGrowth(128, 4.0, 0))
    assert not MemoryForecast(5, 16, running).admits(SequenceGrowth(128, 4.0, 0))
    assert not MemoryForecast(6, 16, [SequenceGrowth(120, 0.0, 10)]).admits(SequenceGrowth(128, 4.0, 0))


GROWTHS = st.builds(SequenceGrowth, st.integers(1, 200), st.integers(0, 20).map(float), st.integers(0, 20))


@given(st.lists(GROWTHS, max_size=8), GROWTHS, st.integers(0, 80))
def test_admitted_is_what_fits_at_every_moment(
    running: list[SequenceGrowth], new: SequenceGrowth, free: int
) -> None:
    new = SequenceGrowth(new.tokens_left, new.prompt_pages, 0)

    def used(moment: int) -> float:
        return sum(
            each.prompt_pages + moment / 16 if each.tokens_left >= moment else -each.held_pages
            for each in [*running, new]
        )

    fits = all(used(each.tokens_left) <= free for each in [*running, new])
    assert MemoryForecast(free, 16, running).admits(new) == fits
