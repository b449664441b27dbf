"""`ReplayRows`: rows of the persistent batch with drafts, for the state cache that owns the rows.

A draft moves no state: the step that checks it keeps the raw inputs of its layers in a lane. The inputs of
accepted drafts wait there until the next launch of the row absorbs them. Drafts end before a depth at which
the sequence leaves a checkpoint, so whatever is kept is read from a live slot in which nothing is missing.
"""

from collections.abc import Callable

import numpy as np

from mamba_server.cache.persistent_batch import Ints, PersistentBatch
from mamba_server.cache.sequence_allocation import SequenceAllocation


class ReplayRows:
    """Drafts of the rows of `batch`.

    `tracks(depth, outputs)`: whether a sequence leaves a checkpoint there; `extend`: takes pages, as the
    cache does.
    """

    def __init__(
        self,
        batch: PersistentBatch,
        page_size: int,
        tracks: Callable[[int, int], bool],
        extend: Callable[[SequenceAllocation, int], bool],
    ) -> None:
        self._batch, self._page_size, self._tracks, self._extend = batch, page_size, tracks, extend

    def room(self, allocation: SequenceAllocation, prompt_len: int, most: int) -> int:
        """Return how many of `most` drafts may follow the next token, and take the pages that they need.

        Before the launch. None reaches a checkpoint of the sequence, or a token that it may not sample any
        more; where pages are short, drafts end with those that there are.
        """
        first, size = allocation.depth + 1, self._page_size
        last = min(first + most, int(self._batch.last_depth[allocation.row]))
        for boundary in range(first // size * size + size, last + 1, size):
            if self._tracks(boundary, boundary - prompt_len):
                last = boundary - 1
                break
        if last > first and not self._extend(allocation, last):
            last = min(last, allocation.page_count * size)
        if last <= first or not self._batch.take_lane(allocation.row):
            return 0
        return last - first

    def holders(self, rows: Ints) -> list[int]:
        """Return the places in `rows` of those that hold a lane."""
        places: list[int] = np.flatnonzero(self._batch.lane[rows] >= 0).tolist()
        return places

    def release(self, row: int) -> None:
        """Free the lane of a row whose step has no drafts; what waited in the lane is absorbed in it."""
        self._batch.return_lane(row)

    def accept(self, allocation: SequenceAllocation) -> None:
        """Record that the next draft of the row was accepted, so that its inputs wait. At the commit."""
        self._batch.depth[allocation.row] += 1
        self._batch.waiting[allocation.row] += 1

    def materialised(self, allocation: SequenceAllocation) -> None:
        """Record that the waiting inputs were absorbed outside a step, so that the live slot is complete."""
        self._batch.waiting[allocation.row] = 0
