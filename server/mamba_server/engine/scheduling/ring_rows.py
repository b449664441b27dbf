"""Rows whose live slots lack the last few tokens: which rows of a step write their states. Pure.

With a ring, a decode step reads the state of a row and leaves the inputs of its token in the row's lane; each
so many-th token the state is written. States are written at depths that the length of the ring divides, and
the length divides a page, so that nothing is missing in a live slot at a depth at which a state is kept:
where a checkpoint is due, where a sequence ends on a page, where one is preempted there. At other depths
nobody reads a live slot but the next step of its row.
"""

import numpy as np

from mamba_server.cache import Ints, PersistentBatch


class RingRows:
    """Rows of `batch` that decode with a ring: each state is written once in `tokens` tokens.

    Smaller steps than `least_rows` write all states: what waits is folded, and they go on as plain ones.
    """

    def __init__(self, batch: PersistentBatch, tokens: int, least_rows: int) -> None:
        self._batch, self.tokens, self._least_rows = batch, tokens, least_rows

    def plan(self, rows: Ints, reached: Ints) -> Ints:
        """Return [3, n] for a step that takes `rows` to the depths `reached`; take lanes. Before the launch.

        Lane of each row, or -1; inputs that wait in it; whether the step writes the row's state. A row that
        gets no lane writes its state.
        """
        lane = self._batch.lane
        if len(rows) < self._least_rows:
            writes = np.ones(len(rows), np.bool_)
        else:
            writes = reached % self.tokens == 0
            for row in rows[~writes & (lane[rows] < 0)].tolist():
                self._batch.take_lane(row)
            writes |= lane[rows] < 0
        return np.array([lane[rows], self._batch.waiting[rows], writes], np.int32)

    def launched(self, rows: Ints, planned: Ints) -> None:
        """Record that the step did as planned, so that its tokens wait where no state was written."""
        self._batch.waiting[rows] = np.where(planned[2] > 0, 0, planned[1] + 1)
