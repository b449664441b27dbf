"""The library as the engine loads it, once for each instruction set that this CPU has."""

from collections.abc import Callable, Iterator

import pytest
import torch

from mamba_kernels.cpu.build import CannotBuild, ensure_built
from mamba_kernels.cpu.library import INSTRUCTION_SETS, Library

Run = Callable[[Library], tuple[torch.Tensor, ...]]


@pytest.fixture(params=INSTRUCTION_SETS)
def library(request: pytest.FixtureRequest) -> Iterator[Library]:
    """What computes is of the process: a test has one at a time, and the quickest one is back then."""
    yield usable(request.param)
    Library(ensure_built())


def usable(name: str) -> Library:
    try:
        return Library(ensure_built(), name)
    except CannotBuild as why:
        pytest.skip(str(why))


@pytest.fixture(params=[1, 2, 4])
def threads(request: pytest.FixtureRequest, library: Library) -> Iterator[int]:
    library.set_threads(request.param)
    yield request.param
    library.set_threads(1)


@pytest.fixture(params=INSTRUCTION_SETS[1:])
def assert_same_bits(request: pytest.FixtureRequest) -> Iterator[Callable[[Run], None]]:
    """Asserts that what a run gives with a wider instruction set has the bits that AVX2 gives."""
    yield from _same_bits_as_avx2(request.param)


@pytest.fixture(params=[name for name in INSTRUCTION_SETS[1:] if not name.startswith("amx")])
def assert_products_have_same_bits(request: pytest.FixtureRequest) -> Iterator[Callable[[Run], None]]:
    """The same of the instruction sets that multiply bfloat16 rows by lanes."""
    yield from _same_bits_as_avx2(request.param)


def _same_bits_as_avx2(name: str) -> Iterator[Callable[[Run], None]]:
    def check(run: Run) -> None:
        # One after the other: what computes is of the process.
        wide = run(Library(ensure_built(), name))
        for got, expected in zip(wide, run(Library(ensure_built(), "avx2")), strict=True):
            torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)

    usable(name)
    yield check
    Library(ensure_built())
