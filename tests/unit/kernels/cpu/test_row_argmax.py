"""The largest number of a row is where torch finds it first, and a row that is not finite is told."""

import math
from collections.abc import Callable

import pytest
import torch

from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.row_operations import RowArgmax

SIZES = [1, 15, 16, 513, 16_384, 16_385, 70_001]
TYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("size", SIZES)
def test_it_is_the_first_of_the_largest(
    library: Library, threads: int, size: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(size)
    # Of bfloat16 many are alike; the last row is far below zero.
    rows = torch.randn(5, size, generator=generator).to(dtype)
    rows[4] -= 1000
    library.set_threads(threads)
    where, finite = RowArgmax(library)(rows)
    library.set_threads(1)
    first = (rows == rows.amax(-1, keepdim=True)).int().argmax(-1)
    assert torch.equal(where, first)
    assert finite.all()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_one_that_is_no_number_is_told_wherever_it_is(
    library: Library, size: int, dtype: torch.dtype, value: float
) -> None:
    places = sorted({0, size // 2, size - 1})
    rows = torch.full((len(places) + 1, size), -3.0, dtype=dtype)
    for row, place in enumerate(places):
        rows[row, place] = value
    where, finite = RowArgmax(library)(rows)
    assert finite.tolist() == [False] * len(places) + [True]
    assert bool(((where >= 0) & (where < size)).all())


def test_tokens_that_are_forbidden_are_no_failure_unless_all_are(library: Library) -> None:
    rows = torch.full((2, 1000), -math.inf)
    rows[0, 777] = -5.0
    where, finite = RowArgmax(library)(rows)
    assert (int(where[0]), finite.tolist()) == (777, [True, False])


def test_every_instruction_set_finds_the_same(assert_same_bits: Callable[..., None]) -> None:
    rows = torch.randn(7, 40_001, generator=torch.Generator().manual_seed(1)).bfloat16()
    assert_same_bits(lambda library: RowArgmax(library)(rows))
