"""How many run follows memory and the lengths that are seen, and hardly anybody is preempted for it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mamba_server.engine.answer_lengths import WINDOW, AnswerLengths
from mamba_server.engine.memory_forecast import Growth, MemoryForecast
from step_load import LoadSetup, StepLoad

SIX_MIB = LoadSetup(
    slabs=96, pages_per_slab=4, rows=32, strategy="ExtraBuffer", prefix_caching=True, longest=4096
)
"""The shipped model's arena of 6 MiB: 95 slabs, three of them a sequence's slots."""


@pytest.mark.parametrize(("before", "after"), [(250, 250), (250, 25), (25, 250)])
def test_clients_that_ask_for_little_fill_the_memory_and_are_not_preempted(before: int, after: int) -> None:
    load, rng, count = StepLoad(SIX_MIB), random.Random(1), 0
    mean, steps, running = before, 1200, 0

    def ask() -> None:
        nonlocal count
        count += 1
        # Nobody says how long an answer will be: as far as the model goes.
        load.add(f"r{count}", rng.randint(20, 50), rng.randint(mean * 2 // 5, mean * 8 // 5), most=4000)

    for _ in range(24):
        ask()
    for step in range(steps):
        mean = before if step < steps // 2 else after
        for _ in load.step():
            ask()
        running += len(load.scheduler.decoding)
    counters = load.scheduler.counters
    assert counters.recomputed_tokens <= 0.05 * (counters.prompt_tokens + load.core.generated_tokens)
    # With 12 pages of slots and (35 + 125) / 16 pages of text on average 17 of 250 tokens would fit at best.
    assert running / steps >= 12


def test_before_any_answer_ended_the_expected_length_counts() -> None:
    assert AnswerLengths(256).expected(0) == 256


def test_lengths_that_ended_replace_what_was_expected() -> None:
    answers = AnswerLengths(2000)
    for length in [2000] * WINDOW + [20] * WINDOW:
        answers.ended(length)
    assert answers.expected(0) == 20


def test_an_answer_longer_than_any_before_is_taken_to_be_in_its_middle() -> None:
    answers = AnswerLengths(10)
    for _ in range(WINDOW):
        answers.ended(10)
    assert answers.expected(400) == 801


@given(st.lists(st.integers(1, 5000), max_size=300), st.integers(0, 6000))
def test_more_is_always_expected_than_there_is(lengths: list[int], outputs: int) -> None:
    answers = AnswerLengths(100)
    for length in lengths:
        answers.ended(length)
    assert answers.expected(outputs) > outputs


def test_what_ends_soon_makes_room_for_what_grows_late() -> None:
    # Ten pages come back after 16 tokens; the newcomer wants 4 at once and 8 more in 128 tokens.
    running = [Growth(16, 0.0, 10)]
    assert MemoryForecast(6, 16, running).admits(Growth(128, 4.0, 0))
    assert not MemoryForecast(5, 16, running).admits(Growth(128, 4.0, 0))
    assert not MemoryForecast(6, 16, [Growth(120, 0.0, 10)]).admits(Growth(128, 4.0, 0))


GROWTHS = st.builds(Growth, st.integers(1, 200), st.integers(0, 20).map(float), st.integers(0, 20))


@given(st.lists(GROWTHS, max_size=8), GROWTHS, st.integers(0, 80))
def test_admitted_is_what_fits_at_every_moment(running: list[Growth], new: Growth, free: int) -> None:
    new = Growth(new.left, new.wanted, 0)

    def used(moment: int) -> float:
        return sum(
            each.wanted + moment / 16 if each.left >= moment else -each.held for each in [*running, new]
        )

    fits = all(used(each.left) <= free for each in [*running, new])
    assert MemoryForecast(free, 16, running).admits(new) == fits
