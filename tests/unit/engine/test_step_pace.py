"""Tokens of a step from the times of the last ones: near the target on any machine, whatever one took."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mamba_server.engine.stepping.step_pace import StepPace

CHUNK, MOST, TARGET = 64, 2048, 0.2


def pace() -> StepPace:
    return StepPace(TARGET, CHUNK, MOST)


def gaps(
    made: StepPace, prompt: int, *, base: float, piece: float, token: float, noise: float = 0.0
) -> list[float]:
    """Return the times of the steps for `prompt` tokens next to one stream on a machine of these costs."""
    rng, out = random.Random(0), []
    for _ in range(5):
        made.observe(1, 0, base)
    while prompt > 0:
        take = min(prompt, (made.tokens(1) - 1) // CHUNK * CHUNK)
        seconds = (base + piece + token * take) * (1 + noise * rng.random())
        made.observe(1, take, seconds)
        out.append(seconds)
        prompt -= take
    return out


def test_while_nobody_decodes_a_step_is_as_large_as_it_may_be() -> None:
    made = pace()
    made.observe(0, 2048, 4.0)
    assert made.tokens(0) == MOST


@pytest.mark.parametrize("token", [1e-3, 3e-4, 1e-4])
@pytest.mark.parametrize("piece", [0.0, 0.02])
def test_steps_beside_a_stream_come_to_take_the_target_and_no_more(token: float, piece: float) -> None:
    times = gaps(pace(), int(4 / token), base=0.04, piece=piece, token=token)
    assert max(times) <= 1.25 * TARGET
    # As much as fits, so the prompt is not held up: but for the last piece and the first ones.
    assert min(times[10:-1]) >= TARGET - max(1.5 * CHUNK * token, 0.1 * TARGET)


def test_noise_and_a_step_that_was_held_up_change_little() -> None:
    made = pace()
    assert max(gaps(made, 8000, base=0.04, piece=0.01, token=5e-4, noise=0.3)) <= 1.6 * TARGET
    before = made.tokens(1)
    made.observe(1, 192, 30.0)
    made.observe(1, 0, 30.0)
    assert 0.7 * before <= made.tokens(1) <= before / 0.7


@given(st.lists(st.tuples(st.integers(0, 64), st.integers(0, 2048), st.floats(0, 100)), max_size=30))
def test_whatever_was_measured_a_step_has_room_for_a_chunk_and_keeps_to_its_bound(
    steps: list[tuple[int, int, float]],
) -> None:
    made = pace()
    for each in steps:
        made.observe(*each)
    for decodes in (0, 1, 30):
        assert min(decodes + CHUNK, MOST) <= made.tokens(decodes) <= MOST


def test_after_a_small_piece_the_next_is_at_most_twice_as_large() -> None:
    made = pace()
    made.observe(1, 0, 0.04)
    made.observe(1, 64, 0.041)
    assert made.tokens(1) == 1 + 2 * 64


def test_a_device_too_slow_for_the_target_goes_on_in_the_smallest_pieces() -> None:
    made = pace()
    made.observe(8, 0, 3.0)
    made.observe(8, 64, 9.0)
    assert made.tokens(8) == 8 + CHUNK
