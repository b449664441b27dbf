"""The persistent batch: one row per running sequence, kept in arrays so that a decode step is array code.

The scheduler owns it. A row's number names the same place on the device: the last sampled token and the
penalty counts live there.
"""

import numpy as np
import numpy.typing as npt

from mamba_server.engine.sequence import Sequence

Ints = npt.NDArray[np.int32]


class PersistentBatch:
    """`capacity` rows with up to `max_pages` pages each; row arrays are indexed by row number."""

    def __init__(self, capacity: int, max_pages: int) -> None:
        self.capacity = capacity
        self.depth: Ints = np.zeros(capacity, np.int32)
        """Tokens folded into the live slot by launched steps."""
        self.live: Ints = np.zeros(capacity, np.int32)
        self.page_count: Ints = np.zeros(capacity, np.int32)
        self.pages: Ints = np.zeros((capacity, max(1, max_pages)), np.int32)
        self.left: Ints = np.zeros(capacity, np.int32)
        """Tokens that may still be sampled."""
        self.last_step: npt.NDArray[np.int64] = np.zeros(capacity, np.int64)
        self.sequences: list[Sequence | None] = [None] * capacity
        self._free = list(range(capacity - 1, -1, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, sequence: Sequence) -> int:
        """Give `sequence` a row (there is a free one)."""
        row = self._free.pop()
        sequence.row = row
        self.sequences[row] = sequence
        return row

    def give_back(self, sequence: Sequence) -> None:
        self.sequences[sequence.row] = None
        self._free.append(sequence.row)
        sequence.row = -1

    def load(self, sequence: Sequence) -> None:
        """Copy what `sequence` holds into its row."""
        allocation, row = sequence.allocation, sequence.row
        assert allocation is not None
        self.depth[row] = allocation.depth
        self.live[row] = allocation.live
        self.left[row] = sequence.params.max_tokens - sequence.sampled
        self.last_step[row] = allocation.last_step
        self.load_pages(sequence)

    def load_pages(self, sequence: Sequence) -> None:
        allocation, row = sequence.allocation, sequence.row
        assert allocation is not None
        count = allocation.page_count
        self.pages[row, :count] = allocation.pages[:count]
        self.page_count[row] = count

    def store(self, sequence: Sequence) -> None:
        """Bring the allocation of `sequence` up to date with its row."""
        allocation, row = sequence.allocation, sequence.row
        assert allocation is not None
        allocation.depth = int(self.depth[row])
        allocation.last_step = int(self.last_step[row])
