"""Bytes in words: short, never more than three digits and a decimal, and close to the truth."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mamba_api.quantity import Quantity
from mamba_planner.byte_size import binary_size


@given(st.integers(0, 1000 << 40))
def test_the_words_are_a_quantity_close_to_the_number(count: int) -> None:
    words = binary_size(count)
    assert Quantity(words).bytes == pytest.approx(count, rel=0.05, abs=0)
    assert float(re.match(r"[\d.]+", words)[0]) < 1024  # type: ignore[index]


@pytest.mark.parametrize(
    ("count", "words"),
    [
        ((1 << 20) - 1, "1.0Mi"),
        ((1 << 30) - 1, "1.0Gi"),
        (1023 << 20, "1023.0Mi"),
        (1, "1"),
        (-1023, "-1023"),
    ],
)
def test_just_below_a_unit_is_one_of_it_and_not_1024_of_the_next_smaller(count: int, words: str) -> None:
    assert binary_size(count) == words


@given(st.integers(1, 1 << 50))
def test_a_debt_is_spelled_like_a_credit(count: int) -> None:
    assert binary_size(-count) == f"-{binary_size(count)}"
