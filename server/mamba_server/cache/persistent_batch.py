"""The persistent batch: one row per admitted sequence, in arrays, so that a decode step is array code.

It alone knows how far a sequence has come: depth, last launched step, live slot, pages. The state cache is
its only writer: it assigns a row at admission, records launches there, and takes the row back with the memory
of its sequence. Step arrays and the runner read it. The runner also calls `unsent_pages` once a step, which
writes `sent` alone, and the scheduler's `RingRows` write `waiting` and lanes at launches. A row's number
names the same row on the device, where the last sampled token and the penalty counts are kept.
"""

import numpy as np
import numpy.typing as npt

from mamba_server.cache.arena import Pages
from mamba_server.cache.errors import LedgerViolation

Ints = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
MAX_TOKENS = 2**31 - 1
_NO_INTS: Ints = np.empty(0, np.int32)


class PersistentBatch:
    """Holds the slots, depth and pages of every running sequence in arrays, one row for each.

    There are `max_running` rows of up to `max_pages` pages; the arrays are indexed by the number of the row.
    """

    def __init__(self, max_running: int, max_pages: int, lanes: int = 0) -> None:
        """Create empty rows. `lanes` is the number of buffers for inputs of drafts, or of a ring.

        Each of these lanes is held by one row at a time.
        """
        self.max_running = max_running
        self.rows = 2 * max_running
        """Number of rows, twice as many as may run: a sequence that leaves keeps its row until its last
        launched step is complete, and at most one such step is in flight when new sequences are admitted (O6:
        lookahead 0 or 1)."""
        self.depth: Ints = np.zeros(self.rows, np.int32)
        """Tokens that launched steps have computed into the live slot, and accepted drafts behind them."""
        self.waiting: Ints = np.zeros(self.rows, np.int32)
        """Tokens whose inputs are kept in the row's lane, because its live slot lacks them: accepted drafts,
        or tokens since a step with a ring last wrote it. The live slot is at `depth - waiting`. The next
        launch of the row computes accepted drafts into the state; the tokens of a ring wait for the next
        launch that writes the state."""
        self.lane: Ints = np.full(self.rows, -1, np.int32)
        """Lane that holds the inputs of the row's drafts or its part of a ring; -1 = none."""
        self.last_step: npt.NDArray[np.int64] = np.zeros(self.rows, np.int64)
        """Last launched step that names the sequence; 0 = none yet."""
        self.live: Ints = np.zeros(self.rows, np.int32)
        """Live slot; 0 once it has been donated."""
        self.page_count: Ints = np.zeros(self.rows, np.int32)
        self.pages: Ints = np.zeros((self.rows, max(1, max_pages)), np.int32)
        """Page ids in the order of the tokens; entries past `page_count` mean nothing."""
        self.sent: Ints = np.zeros(self.rows, np.int32)
        """Number of the first pages that the device's table has, too."""
        self.last_depth: Ints = np.zeros(self.rows, np.int32)
        """Depth at which the last permitted token is sampled: no launch goes beyond it."""
        self.state_seed: Ints = np.zeros(self.rows, np.int32)
        """Seed, together with the depth, of the rounding of float16 states: the first token. All sequences
        that can share a checkpoint have the same one, so that a hit changes no bit."""
        self._free = list(range(self.rows - 1, -1, -1))
        self.lanes = lanes
        self._free_lanes = list(range(lanes - 1, -1, -1))

    @property
    def free(self) -> int:
        """Number of rows without a sequence."""
        return len(self._free)

    def add(self, live: int, depth: int, longest: int | None = None) -> int:
        """Assign a free row to a sequence at `depth` with live slot `live` and no pages yet; return the row.

        The caller has checked `free`. `longest`: tokens that the sequence may grow to; None = no bound.
        """
        row = self._free.pop()
        self.last_depth[row] = MAX_TOKENS if longest is None else longest - 1
        self.depth[row] = depth
        self.last_step[row] = 0
        self.live[row] = live
        self.page_count[row] = self.sent[row] = self.waiting[row] = 0
        return row

    def remove(self, row: int) -> None:
        """Free `row`, whose sequence has ended or was preempted and which no launched step names any more."""
        self.return_lane(row)
        self._free.append(row)

    @property
    def free_lanes(self) -> int:
        """Number of lanes that no row holds."""
        return len(self._free_lanes)

    def take_lane(self, row: int) -> bool:
        """Give `row` a lane unless it has one; return whether it has one now."""
        if self.lane[row] < 0 and self._free_lanes:
            self.lane[row] = self._free_lanes.pop()
        return bool(self.lane[row] >= 0)

    def return_lane(self, row: int) -> None:
        """Free the lane of `row`, if it has one. Launched steps still read it before later steps write it."""
        if self.lane[row] >= 0:
            self._free_lanes.append(int(self.lane[row]))
            self.lane[row] = -1

    def append_pages(self, row: int, pages: Pages) -> None:
        """Append page ids to the pages of `row`. Raises LedgerViolation beyond `max_pages`."""
        count = int(self.page_count[row])
        total = count + len(pages)
        if total > self.pages.shape[1]:
            raise LedgerViolation(f"row {row}: {total} pages for a sequence of at most {self.pages.shape[1]}")
        self.pages[row, count:total] = pages
        self.page_count[row] = total

    def replace_pages(self, row: int, pages: Pages) -> None:
        """Replace the first page ids of `row` by `pages`, which hold the same tokens."""
        changed = np.flatnonzero(self.pages[row, : len(pages)] != pages)
        if len(changed):
            self.pages[row, : len(pages)] = pages
            self.sent[row] = min(int(self.sent[row]), int(changed[0]))

    def unsent_pages(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return the entries of `rows` that the device's page table lacks; they count as sent from now on.

        The result is their indices in the flattened `pages`, and their page ids.
        """
        first, end = self.sent[rows], self.page_count[rows]
        counts = np.maximum(end - first, 0)
        self.sent[rows] = end
        has_unsent = counts > 0
        if not has_unsent.any():
            return _NO_INTS, _NO_INTS
        starts = (rows * self.pages.shape[1] + first)[has_unsent]
        counts = counts[has_unsent]
        before = np.cumsum(counts) - counts
        places = (np.repeat(starts - before, counts) + np.arange(counts.sum())).astype(np.int32)
        return places, self.pages.reshape(-1)[places]

    def launch(self, rows: int | Ints, depth: int | Ints, step: int) -> None:
        """Record that `step` takes the live slots of `rows` to `depth`, with the inputs in their lanes."""
        self.depth[rows] = depth
        if self.lanes:
            self.waiting[rows] = 0
        self.last_step[rows] = step
