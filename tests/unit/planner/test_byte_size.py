"""Bytes in words: short, never more than three digits and a decimal, and close to the truth."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mamba_api.errors import InvalidQuantity
from mamba_api.quantity import SUFFIXES, Quantity
from mamba_settings.byte_size import binary_size, read_size


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


@given(st.integers(0, 1 << 50), st.sampled_from(sorted(set(SUFFIXES) - {"n", "u", "m", "E", "Ei"})))
def test_a_quantity_of_kubernetes_is_read_as_kubernetes_reads_it(number: int, suffix: str) -> None:
    assert read_size(f"{number}{suffix}") == Quantity(f"{number}{suffix}").bytes


@pytest.mark.parametrize("text", ["2GiB", "2giB", "2 Gi", "2gi"])
def test_a_size_as_people_write_it_is_the_one_that_kubernetes_writes_without_a_b(text: str) -> None:
    assert read_size(text) == 2 << 30


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2Gb", "did you mean 2G"),
        ("2gib", "did you mean 2Gi"),
        ("512m", "like 1536Mi"),
        ("3u", "like 1536Mi"),
    ],
)
def test_bits_and_thousandths_are_no_sizes(text: str, words: str) -> None:
    with pytest.raises(InvalidQuantity, match=words):
        read_size(text)
