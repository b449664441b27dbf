"""Covering arrays: few rows of a large matrix in which every pair, or every few values, occur together."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

Row = tuple[Any, ...]


def every(*factors: Sequence[Any]) -> list[Row]:
    """Return all combinations of a value of each factor."""
    return list(product(*factors))


def covering(*factors: Sequence[Any], strength: int = 2) -> list[Row]:
    """Return combinations in which each `strength` values of different factors meet."""
    return with_all_meetings(every(*factors), strength)


def with_all_meetings(rows: Sequence[Row], strength: int = 2) -> list[Row]:
    """Return some of the given rows, in which each `strength` values occur together that do so in them.

    Takes the row with the most new meetings again and again, so that the result is the same each time.
    """
    meetings: dict[tuple[tuple[int, Any], ...], int] = {}
    masks = []
    for row in rows:
        mask = 0
        for values in combinations(enumerate(row), strength):
            mask |= 1 << meetings.setdefault(values, len(meetings))
        masks.append(mask)
    missing, chosen = (1 << len(meetings)) - 1, []
    # A row never has more new meetings than when it was last looked at, so few of them are looked at again.
    heap = [(-mask.bit_count(), number) for number, mask in enumerate(masks)]
    heapq.heapify(heap)
    while missing:
        number = heap[0][1]
        new = (-(masks[number] & missing).bit_count(), number)
        if new > heap[0]:
            heapq.heapreplace(heap, new)
            continue
        heapq.heappop(heap)
        chosen.append(rows[number])
        missing &= ~masks[number]
    return chosen
