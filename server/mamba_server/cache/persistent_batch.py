"""The persistent batch: one row per admitted sequence, kept in arrays so that a decode step is array code.

It alone knows how far a sequence has come: depth, last launched step, live slot, pages. The state cache is
its only writer: it gives a row at admission, records launches there and takes the row back with the memory of
its sequence. Step arrays and the runner read it; `unsent_pages`, which the runner calls once a step, is the
one method of theirs that writes, and writes `sent` alone. A row's number names the same place on the device:
the last sampled token and the penalty counts live there.
"""

import numpy as np
import numpy.typing as npt

from mamba_server.cache.arena import Pages
from mamba_server.cache.errors import LedgerViolation

Ints = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
MOST_TOKENS = 2**31 - 1
_NONE: Ints = np.empty(0, np.int32)


class PersistentBatch:
    """Rows of up to `max_pages` pages, for `max_running` sequences; arrays are indexed by row number."""

    def __init__(self, max_running: int, max_pages: int) -> None:
        self.max_running = max_running
        self.rows = 2 * max_running
        """Twice as many as may run: who leaves keeps its row until its last launched step is complete, and no
        more than one such step is ever in flight when new ones are admitted (O6: lookahead 0 or 1)."""
        self.depth: Ints = np.zeros(self.rows, np.int32)
        """Tokens folded into the live slot by launched steps."""
        self.last_step: npt.NDArray[np.int64] = np.zeros(self.rows, np.int64)
        """The last launched step that names the sequence; 0 = none yet."""
        self.live: Ints = np.zeros(self.rows, np.int32)
        """The live slot; 0 once it has been donated."""
        self.page_count: Ints = np.zeros(self.rows, np.int32)
        self.pages: Ints = np.zeros((self.rows, max(1, max_pages)), np.int32)
        """Page ids in the order of the tokens; those past `page_count` mean nothing."""
        self.sent: Ints = np.zeros(self.rows, np.int32)
        """How many of its first pages the device's table has, too."""
        self.last_depth: Ints = np.zeros(self.rows, np.int32)
        """Depth at which the last token that may be sampled is sampled: no launch goes beyond it."""
        self.state_seed: Ints = np.zeros(self.rows, np.int32)
        """What float16 states are rounded by, with their depth: the first token. It is the same for all that
        can have a checkpoint in common, so that a hit changes no bit."""
        self._free = list(range(self.rows - 1, -1, -1))

    @property
    def free(self) -> int:
        """Rows without a sequence."""
        return len(self._free)

    def add(self, live: int, depth: int, longest: int | None = None) -> int:
        """Return a row (there is a free one) for a sequence at `depth` with live slot `live` and no pages
        yet. `longest`: tokens that it may grow to; None = no bound."""
        row = self._free.pop()
        self.last_depth[row] = MOST_TOKENS if longest is None else longest - 1
        self.depth[row] = depth
        self.last_step[row] = 0
        self.live[row] = live
        self.page_count[row] = self.sent[row] = 0
        return row

    def remove(self, row: int) -> None:
        """The sequence of `row` is over, or was preempted, and no launched step names it any more."""
        self._free.append(row)

    def append_pages(self, row: int, pages: Pages) -> None:
        """Page ids after those that `row` has. Raises LedgerViolation beyond `max_pages`."""
        count = int(self.page_count[row])
        after = count + len(pages)
        if after > self.pages.shape[1]:
            raise LedgerViolation(f"row {row}: {after} pages for a sequence of at most {self.pages.shape[1]}")
        self.pages[row, count:after] = pages
        self.page_count[row] = after

    def replace_pages(self, row: int, pages: Pages) -> None:
        """Page ids in the place of the first ones, which hold the same tokens."""
        changed = np.flatnonzero(self.pages[row, : len(pages)] != pages)
        if len(changed):
            self.pages[row, : len(pages)] = pages
            self.sent[row] = min(int(self.sent[row]), int(changed[0]))

    def unsent_pages(self, rows: Ints) -> tuple[Ints, Ints]:
        """Places in the flattened `pages`, and page ids, that the device's table lacks for `rows`. They are
        taken as sent."""
        first, end = self.sent[rows], self.page_count[rows]
        counts = np.maximum(end - first, 0)
        self.sent[rows] = end
        some = counts > 0
        if not some.any():
            return _NONE, _NONE
        starts = (rows * self.pages.shape[1] + first)[some]
        counts = counts[some]
        before = np.cumsum(counts) - counts
        places = (np.repeat(starts - before, counts) + np.arange(counts.sum())).astype(np.int32)
        return places, self.pages.reshape(-1)[places]

    def launch(self, rows: int | Ints, depth: int | Ints, step: int) -> None:
        """`step` takes the live slots of `rows` to `depth`."""
        self.depth[rows] = depth
        self.last_step[rows] = step
