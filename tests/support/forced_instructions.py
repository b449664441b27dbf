"""One instruction set for the C++ kernels, in place of the one that this processor is best at."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mamba_kernels.cpu.library import library
from mamba_kernels.kernel_choice import VARIABLE, UnknownKernels

FEWER_INSTRUCTIONS = ("avx2", "avx512")
"""Instruction sets that are forced, which most processors have."""
BEST = ""
"""Name of whatever this processor is best at."""


@contextmanager
def forced_instructions(name: str) -> Iterator[str]:
    """Compute with one instruction set alone, as a process does that is told so; skip where there is none.

    Engines that were booted before compute with it as well.
    """
    with pytest.MonkeyPatch.context() as environment:
        try:
            if name != BEST:
                environment.setenv(VARIABLE, name)
                library.cache_clear()
                if library() is None:
                    pytest.skip("there is no compiler here")
            yield name
        except UnknownKernels as why:
            pytest.skip(str(why))
        finally:
            environment.undo()
            if name != BEST:
                library.cache_clear()
                library()
