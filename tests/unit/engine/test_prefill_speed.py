"""Measured speed of prefill: the machine's, independent of piece sizes and of concurrent decodes."""

from random import Random
from statistics import mean, pstdev
from types import SimpleNamespace
from typing import Any

import pytest

from mamba_planner.arithmetic import prefill_work
from mamba_server.engine.stepping.prefill_speed import DOUBLING_SECONDS, MAX_ERROR, PrefillSpeed

TOKEN, DECODE = 1e-4, 0.02


def step(*pieces: tuple[int, int], decodes: int = 0) -> Any:
    made = [SimpleNamespace(start=start, stop=stop) for start, stop in pieces]
    return SimpleNamespace(pieces=made, decodes=[None] * decodes)


@pytest.mark.parametrize("ratio", [0.0, 1e-4])
def test_the_speed_is_that_of_the_first_tokens_whatever_depth_was_computed(ratio: float) -> None:
    speed = PrefillSpeed(ratio)
    for start in range(0, 20_000, 2000):
        speed.observe(step((start, start + 2000)), TOKEN * prefill_work(start, start + 2000, ratio), 0.0)
    assert speed.tokens_per_second == pytest.approx(1 / TOKEN)


def test_what_decoding_beside_it_took_is_not_the_prompts() -> None:
    speed = PrefillSpeed(0.0)
    speed.observe(step(decodes=4), DECODE, 0.0)
    for _ in range(20):
        speed.observe(step((0, 500), decodes=4), DECODE + 500 * TOKEN, 0.0)
    assert speed.tokens_per_second == pytest.approx(1 / TOKEN)
    assert speed.decode_seconds == DECODE


def test_a_slow_first_step_is_forgotten() -> None:
    speed = PrefillSpeed(0.0)
    speed.observe(step((0, 500)), 30.0, 0.0)
    for _ in range(200):
        speed.observe(step((0, 500)), 500 * TOKEN, 0.0)
    assert speed.tokens_per_second == pytest.approx(1 / TOKEN, rel=0.05)


def test_a_step_shorter_than_decoding_was_before_still_gives_a_speed() -> None:
    speed = PrefillSpeed(0.0)
    speed.observe(step(decodes=1), 1.0, 0.0)
    speed.observe(step((0, 10), decodes=1), 0.5, 0.0)
    assert 0 < speed.tokens_per_second <= 10 / 0.1


def test_nothing_is_said_before_it_was_measured() -> None:
    speed = PrefillSpeed(0.0)
    assert (speed.tokens_per_second, speed.decode_seconds) == (0.0, 0.0)
    assert speed.error(0.0) == MAX_ERROR


def test_short_prompts_and_long_ones_show_the_same_speed() -> None:
    # What a step takes that computes next to nothing is in every step, and is not the prompts'.
    found = []
    for tokens in (300, 4000):
        speed = PrefillSpeed(0.0)
        speed.observe(step(decodes=1), DECODE, 0.0)
        for _ in range(20):
            speed.observe(step((0, tokens)), DECODE + tokens * TOKEN, 0.0)
        found.append(speed.tokens_per_second)
    assert found == pytest.approx([1 / TOKEN] * 2)


def test_after_one_step_next_to_nothing_is_known_however_long_it_was() -> None:
    speed = PrefillSpeed(0.0)
    speed.observe(step((0, 4000)), 3.0, 0.0)
    assert speed.error(0.0) == MAX_ERROR


def test_the_error_is_that_by_which_means_of_such_steps_differ() -> None:
    rng = Random(1)
    speeds, errors = [], []
    for _ in range(300):
        speed = PrefillSpeed(0.0)
        for _ in range(100):
            speed.observe(step((0, 500)), 500 * TOKEN * rng.uniform(0.4, 1.6), 0.0)
        speeds.append(speed.tokens_per_second * TOKEN)
        errors.append(speed.error(0.0))
    assert mean(errors) == pytest.approx(pstdev(speeds), rel=0.2)


def test_without_prompts_doubt_grows_until_nothing_is_known() -> None:
    speed = PrefillSpeed(0.0)
    for seconds in (1.0, 1.1) * 10:
        speed.observe(step((0, 500)), seconds, 100.0)
    now = speed.error(100.0)
    assert 0 < now < 0.1
    assert speed.error(100.0 + DOUBLING_SECONDS) == pytest.approx(2 * now)
    assert speed.error(100.0 + 1e9) == MAX_ERROR
