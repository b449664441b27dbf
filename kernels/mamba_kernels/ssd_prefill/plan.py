"""Index arithmetic of the chunked scan and of the prefill convolution: built once per step for all layers.

A chunk is a run of rows of one sequence; chunks never cross sequences, and end wherever a checkpoint is
wanted. Everything comes from host arrays, so building a plan never reads the device.
"""

from dataclasses import dataclass, field

import numpy as np
import torch

from mamba_kernels.slot_plan import IntArray, SlotPlan, index_tensor
from mamba_kernels.ssd_prefill.segments import Segments
from mamba_kernels.transfer import to_device

NARROW = 16
"""Chunks of at most so many rows are not padded to the chunk size: a checkpoint near the end of a prompt
leaves two short ones behind, which would cost as much as whole ones."""


@dataclass(frozen=True, slots=True)
class ChunkGroup:
    """Chunks that are padded to one width. It follows from a chunk's own length alone, so that a chunk's
    result does not depend on its neighbours. g chunks, t rows."""

    width: int
    """Q: positions per chunk, padding included."""
    chunks: torch.Tensor | slice
    """[g] which of the plan's chunks."""
    rows: torch.Tensor | None
    """[g * Q] int64: row of each padded position (padding repeats the chunk's last row); None = identity."""
    padding: torch.Tensor | None
    """[g, Q] bool: positions beyond the chunk's end; None when there is none."""
    unpadded: torch.Tensor | None
    """[t] int64: padded position of each row; None = identity."""
    targets: torch.Tensor | None
    """[t] int64: where those rows lie among the plan's; None = they are all of them, in order."""


@dataclass(frozen=True, slots=True)
class RankPart:
    """Those chunks of one rank that are in one group."""

    group: int
    at: torch.Tensor | slice
    """Their places in the group."""
    of_rank: torch.Tensor | slice
    """Their places among the chunks of the rank."""


@dataclass(frozen=True, slots=True)
class DeviceChunks:
    """The plan as a kernel reads it: int32 on the device, cut out of one copy."""

    piece_chunk: torch.Tensor
    """[m + 1] first chunk of each piece"""
    chunk_start: torch.Tensor
    """[n + 1] first row of each chunk"""
    chunk_track: torch.Tensor
    """[n] slot of the checkpoint at the chunk's end, or -1"""
    chunk_piece: torch.Tensor
    """[n] the piece it belongs to"""
    chunk_noise: torch.Tensor
    """[n] the word that the state at the chunk's end is rounded by, if it is stored as float16"""

    @classmethod
    def of(cls, *host: IntArray, device: torch.device) -> "DeviceChunks":
        """From the five, in their order."""
        packed = to_device(torch.from_numpy(np.concatenate(host).astype(np.int32)), device)
        return cls(*packed.split([len(each) for each in host]))


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """Chunks of the prefill pieces of one batch: n chunks, m pieces, rows counted from the first piece."""

    tokens: int
    """Prefill rows: the pieces lie one after another in rows 0..tokens."""
    chunks: int
    longest_chunk: int
    """Rows."""
    groups: list[ChunkGroup]
    rank_parts: list[list[RankPart]]
    """Per rank r: `rank_chunks[r]` by group."""
    rank_chunks: list[torch.Tensor | slice]
    """Per rank r: the chunks that are the r-th of their piece, in order of pieces that have that many."""
    rank_before: list[torch.Tensor | slice]
    """Per rank r: the chunks just before `rank_chunks[r]` (rank 0: unused)."""
    last: torch.Tensor
    """[m] int64: last chunk of each piece."""
    slots: SlotPlan
    """Where each piece starts from and where its final state goes; tracking is per chunk, below."""
    tracked: torch.Tensor | None
    """[k] int64: chunks whose end state is a checkpoint; None when there is none."""
    tracked_slots: torch.Tensor | None
    """[k] int64"""
    tracked_slot_list: list[int]
    """[k] the same on the host"""
    piece_start: list[int]
    """[m + 1]"""
    piece_chunk: torch.Tensor
    """[m + 1] int32 on the host: first chunk of each piece."""
    chunk_start: torch.Tensor
    """[n + 1] int32 on the host: first row of each chunk."""
    chunk_track: torch.Tensor
    """[n] int32 on the host: slot of the checkpoint at the chunk's end, or -1."""
    chunk_noise: torch.Tensor
    """[n] int32 on the host: of `noise_words`, for the state at the chunk's end."""
    row_noise: torch.Tensor
    """[T] int32 on the device: the same for the state after each row."""
    tracked_piece: IntArray
    """[k] piece of each tracked chunk, on the host."""
    tracked_end: IntArray
    """[k] row just after each tracked chunk, on the host."""
    on_device: DeviceChunks
    cuts: dict[int, Segments | None] = field(default_factory=dict)
    """What `segments` has found."""

    def segments(self, most: int) -> Segments | None:
        """The pieces in at most `most` segments each; made once for all layers."""
        if most not in self.cuts:
            targets = np.array(self.slots.target_slots)
            self.cuts[most] = Segments.cut(self.piece_chunk.numpy(), targets, most, self.slots.device)
        return self.cuts[most]

    def checkpoints(self, piece: int) -> list[tuple[int, int]]:
        """(rows of the piece up to the checkpoint, slot) of each checkpoint inside `piece`."""
        start = self.piece_start[piece]
        return [
            (int(end) - start, slot)
            for owner, end, slot in zip(
                self.tracked_piece, self.tracked_end, self.tracked_slot_list, strict=True
            )
            if owner == piece
        ]

    @classmethod
    def build(
        cls,
        *,
        chunk_start: IntArray,
        chunk_len: IntArray,
        chunk_sequence: IntArray,
        chunk_rank: IntArray,
        chunk_track: IntArray,
        slot_in: IntArray,
        slot_out: IntArray,
        piece_start: IntArray,
        chunk_size: int,
        device: torch.device,
        noise: IntArray | None = None,
        device_noise: torch.Tensor | None = None,
    ) -> "ChunkPlan":
        """Plan for m pieces: slot_in, slot_out [m]; piece_start [m+1] row offsets, beginning with 0.

        chunk_* are [n], with `chunk_sequence` counted from the first piece and `chunk_start` from row 0.
        noise: [T] as of `SlotPlan.build`, for the state after each row.
        """
        tokens = int(piece_start[-1])
        width = np.where(chunk_len <= NARROW, min(NARROW, chunk_size), chunk_size)
        members = [np.flatnonzero(width == each).astype(np.int32) for each in np.unique(width)]
        ranks = int(chunk_rank.max()) + 1
        last = np.flatnonzero(np.diff(chunk_sequence, append=-1) != 0)
        order = [np.flatnonzero(chunk_rank == rank).astype(np.int32) for rank in range(ranks)]
        tracked = np.flatnonzero(chunk_track >= 0)
        piece_chunk = np.concatenate([[0], last + 1]).astype(np.int32)
        boundaries = np.append(chunk_start, tokens).astype(np.int32)
        words = np.zeros(tokens, np.int32) if noise is None else noise
        if device_noise is None:
            none = torch.zeros(tokens, dtype=torch.int32, device=device)
            device_noise = none if noise is None else to_device(torch.from_numpy(words), device)
        chunk_noise = words[chunk_start + chunk_len - 1]
        return cls(
            tokens=tokens,
            chunks=len(chunk_start),
            longest_chunk=int(chunk_len.max()),
            groups=[
                _group(each, int(width[each[0]]), chunk_start[each], chunk_len[each], tokens, device)
                for each in members
            ],
            rank_parts=[_rank_parts(chunks, members, device) for chunks in order],
            rank_chunks=[_slice_or_index(chunks, device) for chunks in order],
            rank_before=[_slice_or_index((chunks - 1).astype(np.int32), device) for chunks in order],
            last=index_tensor(last, device),
            slots=SlotPlan.build(
                slot_in, slot_out, np.full_like(slot_in, -1), device, noise=chunk_noise[last]
            ),
            tracked=index_tensor(tracked, device) if len(tracked) else None,
            tracked_slots=index_tensor(chunk_track[tracked], device) if len(tracked) else None,
            tracked_slot_list=chunk_track[tracked].tolist(),
            piece_start=piece_start.tolist(),
            piece_chunk=torch.from_numpy(piece_chunk),
            chunk_start=torch.from_numpy(boundaries),
            chunk_track=torch.from_numpy(chunk_track.astype(np.int32)),
            chunk_noise=torch.from_numpy(chunk_noise),
            row_noise=device_noise,
            tracked_piece=chunk_sequence[tracked],
            tracked_end=(chunk_start + chunk_len)[tracked],
            on_device=DeviceChunks.of(
                piece_chunk, boundaries, chunk_track, chunk_sequence, chunk_noise, device=device
            ),
        )


def _group(
    chunks: IntArray, width: int, start: IntArray, length: IntArray, tokens: int, device: torch.device
) -> ChunkGroup:
    offsets = np.arange(width)
    inside = offsets < length[:, None]
    rows = start[:, None] + np.minimum(offsets, length[:, None] - 1)
    everything = len(chunks) * width == tokens and bool(inside.all())
    return ChunkGroup(
        width=width,
        chunks=_slice_or_index(chunks, device),
        rows=None if everything else index_tensor(rows.ravel(), device),
        padding=None if inside.all() else index_tensor(~inside, device).bool(),
        unpadded=None if inside.all() else index_tensor(np.flatnonzero(inside.ravel()), device),
        targets=None if int(inside.sum()) == tokens else index_tensor(rows[inside], device),
    )


def _rank_parts(chunks: IntArray, members: list[IntArray], device: torch.device) -> list[RankPart]:
    out = []
    for number, group in enumerate(members):
        there = np.isin(chunks, group)
        if there.any():
            at = np.searchsorted(group, chunks[there]).astype(np.int32)
            of_rank = np.flatnonzero(there).astype(np.int32)
            out.append(RankPart(number, _slice_or_index(at, device), _slice_or_index(of_rank, device)))
    return out


def _slice_or_index(chunks: IntArray, device: torch.device) -> torch.Tensor | slice:
    """A slice where the chunks are neighbours (one sequence, or the last ranks): no copy is needed then."""
    first, last = int(chunks[0]), int(chunks[-1])
    if last - first == len(chunks) - 1:
        return slice(first, last + 1)
    return index_tensor(chunks, device)
