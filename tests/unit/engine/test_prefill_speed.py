"""How fast prompts are computed: the machine's speed, whatever the sizes of the pieces and beside whom."""

from types import SimpleNamespace
from typing import Any

import pytest

from mamba_planner.prefill_work import prefill_work
from mamba_server.engine.prefill_speed import PrefillSpeed

TOKEN, DECODE = 1e-4, 0.02


def step(*pieces: tuple[int, int], decodes: int = 0) -> Any:
    made = [SimpleNamespace(start=start, stop=stop) for start, stop in pieces]
    return SimpleNamespace(pieces=made, decodes=[None] * decodes)


@pytest.mark.parametrize("ratio", [0.0, 1e-4])
def test_the_speed_is_that_of_the_first_tokens_whatever_depth_was_computed(ratio: float) -> None:
    speed = PrefillSpeed(ratio)
    for start in range(0, 20_000, 2000):
        speed.observe(step((start, start + 2000)), TOKEN * prefill_work(start, start + 2000, ratio))
    assert speed.tokens_per_second == pytest.approx(1 / TOKEN)


def test_what_decoding_beside_it_took_is_not_the_prompts() -> None:
    speed = PrefillSpeed(0.0)
    speed.observe(step(decodes=4), DECODE)
    for _ in range(20):
        speed.observe(step((0, 500), decodes=4), DECODE + 500 * TOKEN)
    assert speed.tokens_per_second == pytest.approx(1 / TOKEN)
    assert speed.decode_seconds == DECODE


def test_a_slow_first_step_is_forgotten() -> None:
    speed = PrefillSpeed(0.0)
    speed.observe(step((0, 500)), 30.0)
    for _ in range(200):
        speed.observe(step((0, 500)), 500 * TOKEN)
    assert speed.tokens_per_second == pytest.approx(1 / TOKEN, rel=0.05)


def test_a_step_shorter_than_decoding_was_before_still_gives_a_speed() -> None:
    speed = PrefillSpeed(0.0)
    speed.observe(step(decodes=1), 1.0)
    speed.observe(step((0, 10), decodes=1), 0.5)
    assert 0 < speed.tokens_per_second <= 10 / 0.1


def test_nothing_is_said_before_it_was_measured() -> None:
    speed = PrefillSpeed(0.0)
    assert (speed.tokens_per_second, speed.decode_seconds) == (0.0, 0.0)
