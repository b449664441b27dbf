"""The back-off between restarts, and how a death is put into words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mamba_server.api.engine_link.engine_state import MAX_BACKOFF_SECONDS, backoff, death_reason


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_a_pause_is_never_longer_than_a_few_seconds_and_never_nothing(deaths: int, jitter: float) -> None:
    assert 0 < backoff(deaths, jitter) <= MAX_BACKOFF_SECONDS


@given(st.integers(1, 40))
def test_pauses_grow_with_the_number_of_deaths(deaths: int) -> None:
    assert backoff(deaths, 0.5) <= backoff(deaths + 1, 0.5)


def test_jitter_spreads_replicas_that_died_together() -> None:
    assert backoff(3, 0.9) > 1.5 * backoff(3, 0.0)


@pytest.mark.parametrize(
    ("code", "words"), [(0, "exit code 0"), (7, "exit code 7"), (-9, "signal 9"), (None, "hung")]
)
def test_a_death_is_told_in_words(code: int | None, words: str) -> None:
    assert words in death_reason(code)
