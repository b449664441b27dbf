"""The size of a run of the tests, and few rows of a large matrix in which every pair of values occurs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

LARGE = os.environ.get("MAMBASERVE_GATES") == "large"
"""Whether tests run their whole matrices, as `make gates` does."""
Row = tuple[Any, ...]


def every(*factors: Sequence[Any]) -> list[Row]:
    """Return all combinations of a value of each factor."""
    return list(product(*factors))


def covering(*factors: Sequence[Any]) -> list[Row]:
    """Return combinations in which each value of a factor meets each value of every other one."""
    return with_all_pairs(every(*factors))


def with_all_pairs(given: Sequence[Row]) -> list[Row]:
    """Return some of the given rows, in which every pair of values occurs that occurs in them.

    Takes the row with the most new pairs again and again, so that the result is the same each time.
    """
    pairs: dict[tuple[int, Any, int, Any], int] = {}
    rows = []
    for row in given:
        mask = 0
        for (left, a), (right, b) in combinations(enumerate(row), 2):
            mask |= 1 << pairs.setdefault((left, a, right, b), len(pairs))
        rows.append((row, mask))
    open_pairs, chosen = (1 << len(pairs)) - 1, []
    while open_pairs:
        row, mask = max(rows, key=lambda each: (each[1] & open_pairs).bit_count())
        chosen.append(row)
        open_pairs &= ~mask
    return chosen
