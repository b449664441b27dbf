"""Hidden states that a head for drafts reads: where each row finds the state of the token before its own.

The head reads a token together with the model's hidden state of the token before. If that token is in the
same step, its state is another row. Otherwise an earlier step kept the state. Kept are the states of the last
token of each row of the batch, of the drafts of each lane, and of the last token of each page, for sequences
that resume behind the page. `DraftHead` calls this module in each step; plans are made of the host's integers
alone.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from mamba_kernels.slot_plan import IntArray, index_tensor

if TYPE_CHECKING:
    from mamba_server.model.forward_batch import HostBatch


@dataclass(frozen=True, slots=True)
class HiddenMemory:
    """Keeps the hidden state of each row's last token, for a head that drafts behind it.

    First come the states of the batch's `rows` and of padding, then those of drafts: each lane, which holds
    the drafts of one sequence, has `most` of them.
    """

    kept: torch.Tensor
    """Hidden states, [rows + 1 + lanes * most, d]."""
    rows: int
    """Number of rows of the batch; the next one is for padding."""
    most: int
    """Drafts of a lane."""

    @classmethod
    def allocate(
        cls, rows: int, lanes: int, most: int, width: int, dtype: torch.dtype, device: torch.device
    ) -> "HiddenMemory":
        """Return memory of zeros for `rows` rows, and for `lanes` lanes of `most` drafts."""
        return cls(torch.zeros(rows + 1 + lanes * most, width, dtype=dtype, device=device), rows, most)

    def place(self, row: IntArray, lane: IntArray, accepted: IntArray) -> IntArray:
        """Return the index in `kept` of the last token's hidden state of each row.

        `accepted` is the number of a row's accepted drafts, which are in `lane`; 0 = its last token is no
        draft.
        """
        of_draft = self.rows + 1 + lane * self.most + accepted - 1
        return np.where(accepted > 0, of_draft, row).astype(np.int32)


@dataclass(frozen=True, slots=True)
class HiddenPlan:
    """Places of the hidden states that the rows of one step read and leave behind, on the device."""

    following: torch.Tensor
    """Rows whose preceding token is computed in the same step, in row `preceding`."""
    preceding: torch.Tensor
    first: torch.Tensor
    """Rows whose preceding hidden state is at index `kept` of the memory."""
    kept: torch.Tensor
    resumed: torch.Tensor
    """Rows behind the end of a page, which has column `column` of row `table_row` of the page table."""
    table_row: torch.Tensor
    column: torch.Tensor
    beginning: torch.Tensor
    """Rows of first tokens, which no token precedes."""
    left: torch.Tensor
    """Rows whose hidden states go to index `left_at` of the memory."""
    left_at: torch.Tensor
    ending: torch.Tensor
    """Rows of tokens at the end of their pages."""
    page: torch.Tensor
    """[T] page of each row's key and value."""
    offset: torch.Tensor
    """[T] offset of each row's key and value in its page."""

    @classmethod
    def build(
        cls, host: "HostBatch", memory: HiddenMemory, page_size: int, device: torch.device
    ) -> "HiddenPlan":
        """Plan the step of `host`, whose drafts are the last rows that decode."""
        decodes = len(host.decode_track)
        drafts = 0 if host.replay is None else host.replay.rows
        own = decodes - drafts
        starts, ends = host.query_start[:-1], host.query_start[1:] - 1
        row = np.arange(len(host.positions), dtype=np.int32)
        preceding = row - 1
        preceding[starts] = -1
        left, left_at = ends.copy(), host.table_row.copy()
        if drafts:
            _link_drafts(host, own, memory, preceding, left_at)
        following = np.flatnonzero(preceding >= 0)
        first = np.flatnonzero(preceding < 0)
        position, sequence = host.positions[first], host.token_sequence[first]
        # Where a piece begins with a page, the page before has what it needs, whoever computed that page.
        from_page = (position > 0) & (position % page_size == 0) & (first >= decodes)
        from_memory = (position > 0) & ~from_page
        places = _places(host, own, memory)[sequence[from_memory]]
        ending = np.flatnonzero(host.positions % page_size == page_size - 1)
        arrays = (
            following, preceding[following], first[from_memory], places, first[from_page],
            host.table_row[sequence[from_page]], position[from_page] // page_size - 1, first[position == 0],
            left, left_at, ending, host.kv_row // page_size, host.kv_row % page_size,
        )  # fmt: skip
        return cls(*(index_tensor(array, device) for array in arrays))

    def before(
        self, hidden: torch.Tensor, memory: HiddenMemory, tails: torch.Tensor, page_table: torch.Tensor
    ) -> torch.Tensor:
        """Return the hidden state of the token before each row, [T, d].

        `hidden` are the states of the step's own rows, [T, d].
        """
        preceding = torch.zeros_like(hidden)
        preceding[self.following] = hidden[self.preceding]
        preceding[self.first] = memory.kept[self.kept]
        if len(self.resumed):
            preceding[self.resumed] = tails[page_table[self.table_row, self.column].long()]
        return preceding

    def keep(self, hidden: torch.Tensor, memory: HiddenMemory, tails: torch.Tensor) -> None:
        """Write the hidden states that later steps go on from into `memory` and `tails`."""
        memory.kept[self.left_at] = hidden[self.left]
        tails[self.page[self.ending]] = hidden[self.ending]


def _places(host: "HostBatch", own: int, memory: HiddenMemory) -> IntArray:
    """Return the index in memory of each sequence's last token: at its row, or at an accepted draft.

    The first `own` rows of the step decode.
    """
    places = host.table_row.copy()
    replay = host.replay
    if replay is None or not len(replay.absorbed_slot):
        return places
    # A live slot belongs to one sequence.
    index = {int(slot): number for number, slot in enumerate(host.slot_out[:own])}
    absorbing = np.array([index[int(slot)] for slot in replay.absorbed_slot], np.int32)
    places[absorbing] = memory.place(places[absorbing], replay.absorbed_lane, replay.absorbed_count)
    return places


def _link_drafts(
    host: "HostBatch", own: int, memory: HiddenMemory, preceding: IntArray, left_at: IntArray
) -> None:
    """Set the row before each draft, and the index in memory of each draft's hidden state.

    The drafts follow the first `own` rows of the step. `preceding` and `left_at` are written.
    """
    replay = host.replay
    assert replay is not None
    index = {int(slot): number for number, slot in enumerate(host.slot_out[:own])}
    last = np.array([index[int(slot)] for slot in replay.draft_slot], np.int32)
    row = own
    for turn in range(int(replay.draft_len.max(initial=0))):
        count = int((replay.draft_len > turn).sum())
        preceding[row : row + count] = last[:count]
        left_at[row : row + count] = memory.rows + 1 + replay.draft_lane[:count] * memory.most + turn
        last[:count] = np.arange(row, row + count)
        row += count
