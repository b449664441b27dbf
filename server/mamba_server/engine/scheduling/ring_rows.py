"""Rows whose live slots lack the last few tokens: which rows of a step write their states. Pure.

With a ring, a decode step reads the state of a row and leaves the inputs of its token in the row's lane; the
state is written once in several tokens. States are written at depths that the length of the ring divides, and
the length divides a page, so that nothing is missing in a live slot at a depth at which a state is kept:
where a checkpoint is due, where a sequence ends on a page, where one is preempted there. At other depths
nobody reads a live slot but the next step of its row.
"""

import numpy as np

from mamba_server.cache import Ints, PersistentBatch


class RingRows:
    """The rows of `batch` that decode with a ring, and the rule for when a step writes their states.

    In a step of at least `least_rows` rows, a row's state is written once in `tokens` tokens. Between two
    writes, the inputs of the row's tokens are kept in its lane of the ring. A smaller step writes the state
    of every row, kept inputs included, so that afterwards the lanes hold no inputs.
    """

    def __init__(self, batch: PersistentBatch, tokens: int, least_rows: int) -> None:
        self._batch, self.tokens, self._least_rows = batch, tokens, least_rows

    def plan(self, rows: Ints, reached: Ints) -> Ints:
        """Return int32[3, n] for a step that takes the n `rows` to the depths `reached`, before its launch.

        For each row it has the lane, or -1; the number of inputs in the lane; and whether the step writes the
        row's state. Rows get lanes here; the state of a row that gets none is written.
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
        """Record that a step was launched with the result `planned` of `plan` for `rows`.

        A row whose state the step writes has no inputs left in its lane. Any other row has one more.
        """
        self._batch.waiting[rows] = np.where(planned[2] > 0, 0, planned[1] + 1)
