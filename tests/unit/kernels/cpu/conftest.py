"""The library as the engine loads it."""

from collections.abc import Iterator

import pytest

from mamba_kernels.cpu.build import CannotBuild, ensure_built
from mamba_kernels.cpu.library import Library


@pytest.fixture(scope="session")
def library() -> Library:
    try:
        return Library(ensure_built())
    except CannotBuild as why:
        pytest.skip(str(why))


@pytest.fixture(params=[1, 2, 4])
def threads(request: pytest.FixtureRequest, library: Library) -> Iterator[int]:
    library.set_threads(request.param)
    yield request.param
    library.set_threads(1)
