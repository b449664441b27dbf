"""The library as the engine loads it, once for each instruction set that this CPU has.

A test with three or more parameters runs with so many of their combinations that every pair of values
occurs; with MAMBASERVE_GATES=large it runs with all of them.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from covering import with_all_meetings
from emulated_matrix_unit import emulated_library
from mamba_kernels.cpu.build import CannotBuild, ensure_built
from mamba_kernels.cpu.library import Library
from mamba_kernels.kernel_choice import INSTRUCTION_SETS
from matrix_size import LARGE

Run = Callable[[Library], tuple[torch.Tensor, ...]]
HERE = Path(__file__).parent
_NONE = SimpleNamespace(params={})


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if LARGE:
        return
    matrices: dict[str, dict[tuple[Any, ...], pytest.Item]] = defaultdict(dict)
    texts: dict[int, str] = {}
    for item in items:
        if item.path.parent == HERE and len(row := _values(item, texts)) > 2:
            matrices[item.nodeid.partition("[")[0]][row] = item
    left_out = {
        item
        for matrix in matrices.values()
        for item in {*matrix.values()}.difference(matrix[row] for row in with_all_meetings([*matrix]))
    }
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def _values(item: pytest.Item, texts: dict[int, str]) -> tuple[Any, ...]:
    """Return the value of each parameter as text; those that change together are one.

    `texts`: those of earlier items by the id of their values, which all items of a test share. Each process
    of a run asks for those of all items, and that of a tensor takes a millisecond.
    """
    params = getattr(item, "callspec", _NONE).params
    for value in params.values():
        if id(value) not in texts:
            texts[id(value)] = repr(value)
    values = {name: texts[id(value)] for name, value in params.items()}
    chosen = []
    for marker in item.iter_markers("parametrize"):
        names = marker.args[0]
        together = tuple(values.pop(name) for name in (names.split(",") if isinstance(names, str) else names))
        if len(marker.args[1]) > 1:
            chosen.append(together)
    return (*chosen, *values.values())


@cache
def built() -> Path:
    """Return the path of the library. To find it takes a compiler's version and a hash of all sources."""
    return ensure_built()


@pytest.fixture(params=INSTRUCTION_SETS)
def library(request: pytest.FixtureRequest) -> Iterator[Library]:
    """Yield the only library of the process during a test; the fastest one is restored afterwards."""
    yield usable(request.param, request)
    Library(built())


def usable(name: str, request: pytest.FixtureRequest) -> Library:
    """Return the library, or skip the test if the CPU lacks the instructions; `matrix_unit` emulates AMX."""
    try:
        try:
            return Library(built(), name)
        except CannotBuild:
            if not name.startswith("amx") or request.node.get_closest_marker("matrix_unit") is None:
                raise
            return Library(emulated_library(), name)
    except CannotBuild as why:
        pytest.skip(str(why))


@pytest.fixture(params=[1, 2, 4])
def threads(request: pytest.FixtureRequest, library: Library) -> Iterator[int]:
    library.set_threads(request.param)
    yield request.param
    library.set_threads(1)


@pytest.fixture(params=INSTRUCTION_SETS[1:])
def assert_same_bits(request: pytest.FixtureRequest) -> Iterator[Callable[[Run], None]]:
    """Assert that a run's results have the same bits with a wider instruction set as with AVX2."""
    yield from _same_bits_as_avx2(request)


@pytest.fixture(params=[name for name in INSTRUCTION_SETS[1:] if not name.startswith("amx")])
def assert_products_have_same_bits(request: pytest.FixtureRequest) -> Iterator[Callable[[Run], None]]:
    """Assert equal bits for the instruction sets that multiply bfloat16 rows by lanes."""
    yield from _same_bits_as_avx2(request)


def _same_bits_as_avx2(request: pytest.FixtureRequest) -> Iterator[Callable[[Run], None]]:
    def check(run: Run) -> None:
        # One after the other: what computes is of the process.
        wide = run(usable(request.param, request))
        for got, expected in zip(wide, run(Library(built(), "avx2")), strict=True):
            torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)

    usable(request.param, request)
    yield check
    Library(built())
