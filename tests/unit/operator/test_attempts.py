"""Which revision fails more requests: what is counted of gateways, and when it is more than chance."""

from fractions import Fraction
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mamba_operator.rollout.attempts import (
    MIN_ATTEMPTS,
    MIN_FAILING_SAMPLES,
    WINDOW_SECONDS,
    Attempts,
    AttemptWindow,
    fails_more,
    p_value,
)

COUNT = st.integers(0, 3000)
REVISIONS = {"old-1": "old", "old-2": "old", "new-1": "new"}


def attempts(answered: int, failed: int, looks: int = MIN_FAILING_SAMPLES) -> Attempts:
    return Attempts(answered, failed, looks)


@st.composite
def some(draw: st.DrawFn) -> Attempts:
    return attempts(draw(COUNT), draw(st.integers(0, 300)), draw(st.integers(0, 2 * MIN_FAILING_SAMPLES)))


@pytest.mark.parametrize(
    ("new", "old", "taken_back"),
    [
        (attempts(0, 40), attempts(40, 0), True),
        (attempts(30, 20), attempts(50, 0), True),
        (attempts(900, 60), attempts(1000, 5), True),
        (attempts(25, 1), attempts(50, 0), False),
        (attempts(100, 20), attempts(100, 20), False),
        (attempts(10_000, 130), attempts(10_000, 20), False),
        (attempts(0, MIN_ATTEMPTS - 1), attempts(1000, 0), False),
        (attempts(0, 1000), attempts(MIN_ATTEMPTS - 1, 0), False),
        (attempts(0, 1000, looks=MIN_FAILING_SAMPLES - 1), attempts(1000, 0), False),
        (attempts(0, 1000), Attempts(), False),
        (Attempts(), attempts(1000, 0), False),
    ],
    ids=[
        "fails all", "fails many", "fails some of many", "one failure", "both fail alike",
        "sure and below what matters", "few attempts", "few beside it", "all within a moment",
        "nothing beside it", "nothing came",
    ],
)  # fmt: skip
def test_only_what_is_sure_and_matters_counts(new: Attempts, old: Attempts, taken_back: bool) -> None:
    assert fails_more(new, old) is taken_back


@given(some(), some())
def test_never_both_of_two_revisions(one: Attempts, other: Attempts) -> None:
    assert not (fails_more(one, other) and fails_more(other, one))
    assert not fails_more(one, Attempts(one.answered, one.failed, 0))


@given(some(), some(), st.integers(1, 50))
def test_a_failure_more_of_the_new_or_a_success_more_of_the_old_takes_nothing_back_from_it(
    new: Attempts, old: Attempts, more: int
) -> None:
    if fails_more(new, old):
        assert fails_more(new + Attempts(failed=more), old)
        assert fails_more(new, old + Attempts(answered=more))


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
def test_the_chance_is_that_of_counting_all_ways(a: int, b: int, c: int, d: int) -> None:
    mine, failures, total = a + b, b + d, a + b + c + d
    ways = sum(comb(mine, k) * comb(total - mine, failures - k) for k in range(b, min(mine, failures) + 1))
    exact = float(Fraction(ways, comb(total, failures)))
    assert p_value(attempts(a, b), attempts(c, d)) == pytest.approx(exact, rel=1e-9, abs=1e-12)


def told(**pods: tuple[int, int]) -> dict[str, Attempts]:
    return {name.replace("_", "-"): Attempts(*counts) for name, counts in pods.items()}


def test_differences_of_all_gateways_are_summed_by_revision() -> None:
    window = AttemptWindow()
    window.observe(0, REVISIONS, {"g1": told(old_1=(100, 9)), "g2": told(old_1=(50, 0), new_1=(7, 7))})
    assert window.sums() == {}, "nobody knows since when that was counted"
    failed = window.observe(
        5, REVISIONS, {"g1": told(old_1=(110, 9), old_2=(5, 0), new_1=(2, 1)), "g2": told(new_1=(8, 9))}
    )
    assert failed
    assert window.sums() == {"old": Attempts(15, 0), "new": Attempts(3, 3, 1)}


def test_one_engine_that_fails_beside_others_of_its_revision_does_not_speak_for_them() -> None:
    revisions = {"old-1": "old", **{f"new-{number}": "new" for number in range(10)}}

    def sums(failing: int) -> dict[str, Attempts]:
        window = AttemptWindow()
        for look in range(10):
            counts = {"old-1": Attempts(40 * look)}
            for number in range(10):
                counts[f"new-{number}"] = Attempts(20 * look, 20 * look if number < failing else 0)
            window.observe(5.0 * look, revisions, {"g": counts})
        return dict(window.sums())

    one, two = sums(1), sums(2)
    assert not fails_more(one["new"], one["old"])
    assert fails_more(two["new"], two["old"])


def test_counters_that_fell_were_started_anew() -> None:
    window = AttemptWindow()
    window.observe(0, REVISIONS, {"g": told(old_1=(100, 9))})
    window.observe(5, REVISIONS, {"g": told(old_1=(3, 1))})
    assert window.sums() == {"old": Attempts(3, 1, 1)}


def test_a_gateway_that_was_silent_loses_nothing_and_one_that_is_new_counts_from_its_second_look() -> None:
    window = AttemptWindow()
    window.observe(0, REVISIONS, {"g": told(old_1=(1, 0))})
    assert not window.observe(5, REVISIONS, {"g": None, "late": told(old_1=(500, 500))})
    window.observe(10, REVISIONS, {"g": told(old_1=(4, 0)), "late": told(old_1=(501, 500))})
    assert window.sums() == {"old": Attempts(4, 0)}


def test_what_is_long_ago_and_engines_that_nobody_knows_do_not_count() -> None:
    window = AttemptWindow()
    window.observe(0, REVISIONS, {"g": told(new_1=(0, 0), other=(0, 0))})
    window.observe(5, REVISIONS, {"g": told(new_1=(0, 3), other=(0, 9))})
    assert window.sums() == {"new": Attempts(0, 3, 1)}
    window.observe(5 + WINDOW_SECONDS, REVISIONS, {"g": told(new_1=(2, 3))})
    assert window.sums() == {"new": Attempts(2, 0)}
