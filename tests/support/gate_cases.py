"""Parameters of the correctness gates: strategy, overlap, page size and chunk; and the size of the run."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import matrix_size
from engines import make_engine
from mamba_server.engine.boot import BootOverrides, Engine

LARGE = matrix_size.LARGE
STRATEGIES = ("NoBuffer", "ExtraBuffer", "ExtraBufferLazy")


@dataclass(frozen=True)
class Case:
    """One cell of the matrix."""

    strategy: str
    overlap: bool
    page_size: int
    chunk: int

    def __str__(self) -> str:
        return f"{self.strategy}-{'overlap' if self.overlap else 'serial'}-{self.page_size}-{self.chunk}"

    def boot(self, directory: Path, *, fail: Any = None, stream: Any = None, **settings: Any) -> Engine:
        return make_engine(
            directory,
            trial=BootOverrides(self.chunk, fail, stream),
            **{
                "strategy": self.strategy,
                "overlap": self.overlap,
                "page_size": self.page_size,
                "track_interval": 64,
                "max_running_requests": 4,
                **settings,
            },
        )


EVERY = [Case(*cell) for cell in product(STRATEGIES, (True, False), (1, 16, 64), (48, 64, 128))]
SQUARE = [
    Case("NoBuffer", True, 1, 64),
    Case("NoBuffer", False, 16, 128),
    Case("ExtraBuffer", True, 16, 48),
    Case("ExtraBuffer", False, 64, 128),
    Case("ExtraBufferLazy", True, 64, 128),
    Case("ExtraBufferLazy", False, 1, 64),
]
"""Every strategy with either overlap, both chunks and two page sizes; every page size with either overlap."""
CASES = EVERY if LARGE else SQUARE
THIRD, OTHER_THIRD = (EVERY, EVERY) if LARGE else (SQUARE[::3] + SQUARE[4:5], SQUARE[1:3] + SQUARE[5:])
"""Two parts of the square with every strategy, either overlap and two page sizes each.

A test with one more parameter takes one part for each of its values; a test of which others are stricter
takes one part.
"""
