"""A plan's chunks as the reference computes them: padded to few widths, and rank by rank between chunks.

Built at the first use by the reference; kernels read unpadded chunks.
"""

from dataclasses import dataclass

import numpy as np
import torch

from mamba_kernels.slot_plan import IntArray, index_tensor

NARROW = 16
"""Largest number of rows of a chunk that is not padded to the chunk size: a checkpoint near the end of a
prompt creates two short chunks, which would cost as much as full ones."""


@dataclass(frozen=True, slots=True)
class ChunkGroup:
    """A group of g chunks with t rows that are padded to one width.

    The width follows from a chunk's own length alone, so that a chunk's result does not depend on its
    neighbours.
    """

    width: int
    """Q: positions per chunk, padding included."""
    chunks: torch.Tensor | slice
    """[g] numbers of the group's chunks in the plan."""
    rows: torch.Tensor | None
    """[g * Q] int64: row of each padded position (padding repeats the chunk's last row); None = identity."""
    padding: torch.Tensor | None
    """[g, Q] bool: positions beyond the chunk's end; None when there is none."""
    unpadded: torch.Tensor | None
    """[t] int64: padded position of each row; None = identity."""
    targets: torch.Tensor | None
    """[t] int64: row of the plan for each row; None = all rows of the plan, in order."""


@dataclass(frozen=True, slots=True)
class RankPart:
    """Chunks of one group that are the r-th of their piece, for one r (their rank)."""

    group: int
    """Number of the group among `groups` of the plan's chunks."""
    in_group: torch.Tensor | slice
    """Places of the chunks in the group."""
    in_rank: torch.Tensor | slice
    """Places of the chunks among all chunks of the rank."""


@dataclass(frozen=True, slots=True)
class PaddedChunks:
    """Index tensors by which the reference gathers the n chunks of a plan, and connects their states.

    A piece is the part of one prompt in a batch, and a chunk a run of its rows.
    """

    groups: list[ChunkGroup]
    rank_parts: list[list[RankPart]]
    """Per rank r: `rank_chunks[r]` by group."""
    rank_chunks: list[torch.Tensor | slice]
    """Per rank r: the chunks that are the r-th of their piece, in the order of the pieces."""
    rank_before: list[torch.Tensor | slice]
    """Per rank r: the chunks just before `rank_chunks[r]` (rank 0: unused)."""
    last: torch.Tensor
    """[m] int64: last chunk of each piece."""
    tracked: torch.Tensor | None
    """[k] int64: chunks whose end state is a checkpoint; None when there is none."""
    tracked_slots: torch.Tensor | None
    """Slots of these checkpoints, [k] int64; None when there is none."""

    @classmethod
    def build(
        cls,
        *,
        bounds: IntArray,
        last: IntArray,
        rank: IntArray,
        track: IntArray,
        chunk_size: int,
        device: torch.device,
    ) -> "PaddedChunks":
        """Group the chunks by padded width and by rank.

        `bounds` are the first rows of the chunks, [n + 1]. `last` is the last chunk of each piece, [m].
        `rank` is the place of each chunk in its piece, [n]. `track` is the slot of the checkpoint at its end,
        or -1, [n].
        """
        length, tokens = np.diff(bounds), int(bounds[-1])
        width = np.where(length <= NARROW, min(NARROW, chunk_size), chunk_size)
        members = [np.flatnonzero(width == extent).astype(np.int32) for extent in np.unique(width)]
        order = [np.flatnonzero(rank == number).astype(np.int32) for number in range(int(rank.max()) + 1)]
        tracked = np.flatnonzero(track >= 0)
        return cls(
            groups=[
                _group(chunks, int(width[chunks[0]]), bounds[chunks], length[chunks], tokens, device)
                for chunks in members
            ],
            rank_parts=[_rank_parts(chunks, members, device) for chunks in order],
            rank_chunks=[_slice_or_index(chunks, device) for chunks in order],
            rank_before=[_slice_or_index((chunks - 1).astype(np.int32), device) for chunks in order],
            last=index_tensor(last, device),
            tracked=index_tensor(tracked, device) if len(tracked) else None,
            tracked_slots=index_tensor(track[tracked], device) if len(tracked) else None,
        )


def _group(
    chunks: IntArray, width: int, start: IntArray, length: IntArray, tokens: int, device: torch.device
) -> ChunkGroup:
    offsets = np.arange(width)
    inside = offsets < length[:, None]
    rows = start[:, None] + np.minimum(offsets, length[:, None] - 1)
    complete = len(chunks) * width == tokens and bool(inside.all())
    return ChunkGroup(
        width=width,
        chunks=_slice_or_index(chunks, device),
        rows=None if complete else index_tensor(rows.ravel(), device),
        padding=None if inside.all() else index_tensor(~inside, device).bool(),
        unpadded=None if inside.all() else index_tensor(np.flatnonzero(inside.ravel()), device),
        targets=None if int(inside.sum()) == tokens else index_tensor(rows[inside], device),
    )


def _rank_parts(chunks: IntArray, members: list[IntArray], device: torch.device) -> list[RankPart]:
    out = []
    for number, group in enumerate(members):
        in_group = np.isin(chunks, group)
        if in_group.any():
            positions = np.searchsorted(group, chunks[in_group]).astype(np.int32)
            in_rank = np.flatnonzero(in_group).astype(np.int32)
            out.append(RankPart(number, _slice_or_index(positions, device), _slice_or_index(in_rank, device)))
    return out


def _slice_or_index(chunks: IntArray, device: torch.device) -> torch.Tensor | slice:
    """Return a slice, which needs no copy, if the chunks are neighbours (one sequence, or the last ranks)."""
    first, last = int(chunks[0]), int(chunks[-1])
    if last - first == len(chunks) - 1:
        return slice(first, last + 1)
    return index_tensor(chunks, device)
