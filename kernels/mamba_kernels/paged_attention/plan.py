"""Pages to which each row attends, built once per step from host arrays and used by all attention layers."""

from dataclasses import dataclass

import numpy as np
import torch

from mamba_kernels.slot_plan import HostIntegers, IntArray, index_tensor
from mamba_kernels.transfer import to_device


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Decoding sequences that the reference computes together: their contexts are padded to one length."""

    rows: torch.Tensor | slice
    """Rows of the batch, [g]"""
    pages: torch.Tensor
    """[g, L] int64: page of each context position; positions beyond the end repeat the last page."""
    offsets: torch.Tensor
    """Place of each context position in its page, [g, L] int64."""
    mask: torch.Tensor | None
    """[g, 1, 1, L] bool, True = attend; None when nothing is padded."""


@dataclass(frozen=True, slots=True)
class AttentionPiece:
    """The part of one prompt in a batch: rows `first..end`, which are the last positions of the context."""

    first: int
    end: int
    context: int
    """Positions of the context, the piece included."""
    pages: torch.Tensor
    """Page of each position of the context, [context] int64."""
    offsets: torch.Tensor
    """Place of each position in its page, [context] int64."""


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Plan of the attention of one batch: which pages each of its S sequences reads, and for which rows."""

    groups: list[DecodeGroup]
    """Decodes, in groups of sequences with the same padded length."""
    pieces: list[AttentionPiece]
    """Prefill pieces, one per sequence; `groups` and `pieces` are both empty if kernels attend."""
    tokens: int
    """T: rows of the batch."""
    decodes: int
    """D: number of sequences with one row, which are the first ones."""
    longest_piece: int
    """Rows of the longest piece; 0 = there is none."""
    page_table: torch.Tensor
    """[R, W] int32: W page ids in each of R rows; those beyond the end of a sequence are arbitrary."""
    table_row: torch.Tensor
    """[S] int32 on the device: row of the table for each sequence."""
    context_len: torch.Tensor
    """[S] int32 on the device: number of positions of each context."""
    query_start: torch.Tensor
    """[S + 1] int32 on the device: first row of each sequence."""

    @classmethod
    def build(
        cls,
        *,
        decodes: int,
        query_start: IntArray,
        context_len: IntArray,
        page_table: torch.Tensor,
        page_size: int,
        device: torch.device,
        table_row: IntArray | None = None,
        gathered: bool = True,
        resident: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
    ) -> "AttentionPlan":
        """Plan S sequences, of which the first `decodes` have one row each.

        Args:
            decodes: number of sequences with one row.
            query_start: [S + 1] first row of each sequence.
            context_len: [S] positions of each context.
            page_table: [R, W] page ids, on the device; `table_row` says which row is whose.
            page_size: positions of a page.
            device: device of the kernels.
            table_row: row of the table for each sequence; None = row s for sequence s.
            gathered: whether torch attends, over keys that it gathers; otherwise kernels do, by the table.
            resident: table_row, context_len and query_start on the device if they were sent already.
        """
        lengths = np.diff(query_start)[decodes:]
        if table_row is None:
            table_row = np.arange(len(context_len), dtype=np.int32)
        rows, contexts, starts = resident or (
            _as_tensor(values, device) for values in (table_row, context_len, query_start)
        )
        pages = _Pages(page_table, table_row, page_size, device)
        return cls(
            groups=_decode_groups(context_len[:decodes], pages) if gathered else [],
            pieces=_pieces(decodes, query_start, context_len, pages) if gathered else [],
            tokens=int(query_start[-1]),
            decodes=decodes,
            longest_piece=int(lengths.max(initial=0)),
            page_table=page_table,
            table_row=rows,
            context_len=contexts,
            query_start=starts,
        )


@dataclass(frozen=True, slots=True)
class _Pages:
    """Looks up the pages of positions in the page table, which is on the device."""

    table: torch.Tensor
    row: IntArray
    page_size: int
    device: torch.device

    def of(self, sequences: HostIntegers, positions: HostIntegers) -> tuple[torch.Tensor, torch.Tensor]:
        """Return int64 pages and offsets of positions; `sequences` broadcasts to `positions`."""
        rows, columns = index_tensor(self.row[sequences], self.device), positions // self.page_size
        pages = self.table[rows, index_tensor(columns, self.device)].long()
        return pages, index_tensor(positions % self.page_size, self.device)


def _decode_groups(context_len: IntArray, pages_of: _Pages) -> list[DecodeGroup]:
    """Group decodes by the padded length of their contexts.

    The length depends on the context alone, so a row's result does not depend on the batch. Padding is less
    than a quarter of a context above 16 positions.
    """
    lengths = np.array([padded_length(int(length)) for length in context_len])
    groups = []
    for length in np.unique(lengths):
        members = np.flatnonzero(lengths == length)
        contexts = context_len[members, None]
        positions = np.minimum(np.arange(length), contexts - 1)
        ragged = bool((contexts < length).any())
        neighbours = members[-1] - members[0] == len(members) - 1
        pages, offsets = pages_of.of(members[:, None], positions)
        groups.append(
            DecodeGroup(
                rows=slice(int(members[0]), int(members[-1]) + 1)
                if neighbours
                else index_tensor(members, pages_of.device),
                pages=pages,
                offsets=offsets,
                mask=index_tensor(np.arange(length) < contexts, pages_of.device).bool()[:, None, None]
                if ragged
                else None,
            )
        )
    return groups


def _pieces(
    decodes: int, query_start: IntArray, context_len: IntArray, pages_of: _Pages
) -> list[AttentionPiece]:
    pieces = []
    for sequence in range(decodes, len(context_len)):
        context = int(context_len[sequence])
        pages, offsets = pages_of.of(np.array([sequence]), np.arange(context))
        pieces.append(
            AttentionPiece(
                first=int(query_start[sequence]),
                end=int(query_start[sequence + 1]),
                context=context,
                pages=pages,
                offsets=offsets,
            )
        )
    return pieces


def _as_tensor(values: IntArray, device: torch.device) -> torch.Tensor:
    return to_device(torch.from_numpy(np.ascontiguousarray(values, np.int32)), device)


def padded_length(context: int) -> int:
    """Return the smallest of 16, 20, 24, 28, 32, 40, … that holds the context: four per power of two."""
    if context <= 16:
        return 16
    grain = 1 << ((context - 1).bit_length() - 3)
    return -(-context // grain) * grain
