"""Schedules of open loops."""

from itertools import pairwise
from random import Random

import pytest

from mamba_cli.bench.arrivals import constant, poisson


def test_constant_arrivals_keep_their_distance() -> None:
    assert list(constant(4, 5)) == [0, 0.25, 0.5, 0.75, 1.0]


def test_poisson_arrivals_have_the_rate_and_the_spread_of_a_poisson_process() -> None:
    times = list(poisson(10, 20_000, Random(1)))
    gaps = [after - before for before, after in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(0.1, rel=0.03)
    assert deviation / mean == pytest.approx(1, rel=0.05)


def test_no_requests_are_no_times() -> None:
    assert list(poisson(1, 0, Random(0))) == list(constant(1, 0)) == []


@pytest.mark.parametrize("rate", [0, -1, float("nan")])
def test_a_rate_that_is_none_is_refused(rate) -> None:
    with pytest.raises(ValueError, match="positive"):
        list(poisson(rate, 3, Random(0)))
    with pytest.raises(ValueError, match="positive"):
        list(constant(rate, 3))
