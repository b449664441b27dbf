"""Pauses between tries: they grow, have an end, and are not the same for all."""

import pytest

from mamba_prefix.backoff import FIRST_PAUSE, LONGEST_PAUSE, Backoff


def test_pauses_double_up_to_the_longest_and_begin_again_after_a_success() -> None:
    backoff = Backoff(lambda: 1.0)
    pauses = [backoff.record_failure() for _ in range(40)]
    assert pauses[:3] == pytest.approx([FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE])
    assert set(pauses[10:]) == {LONGEST_PAUSE}
    assert backoff.failures == 40
    backoff.record_success()
    assert (backoff.failures, backoff.record_failure()) == (0, FIRST_PAUSE)


def test_who_fails_together_does_not_come_back_together() -> None:
    assert Backoff(lambda: 0.0).record_failure() == FIRST_PAUSE / 2
    assert {Backoff().record_failure() for _ in range(20)} != {FIRST_PAUSE}
