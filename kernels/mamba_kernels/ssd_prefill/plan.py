"""Index arithmetic of the chunked scan and of the prefill convolution: built once per step for all layers.

A chunk is a run of rows of one sequence; chunks never cross sequences, and end wherever a checkpoint is
wanted. Everything comes from host arrays, so building a plan never reads the device.
"""

from dataclasses import dataclass

import numpy as np
import torch

from mamba_kernels.slot_plan import IntArray, SlotPlan, index_tensor


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """Chunks of the prefill pieces of one batch: n chunks, m pieces, rows counted from the first piece."""

    tokens: int
    """Prefill rows: the pieces lie one after another in rows 0..tokens."""
    chunks: int
    chunk_size: int
    """C: every chunk is padded to it, so that a chunk's result does not depend on its neighbours."""
    rows: torch.Tensor | None
    """[n * C] int64: row of each padded position (padding repeats the chunk's last row); None = identity."""
    padding: torch.Tensor | None
    """[n, C] bool: positions beyond the chunk's end; None when there is none."""
    unpadded: torch.Tensor | None
    """[tokens] int64: padded position of each row; None = identity."""
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
    tracked_piece: IntArray
    """[k] piece of each tracked chunk, on the host."""
    tracked_end: IntArray
    """[k] row just after each tracked chunk, on the host."""

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
    ) -> "ChunkPlan":
        """Plan for m pieces: slot_in, slot_out [m]; piece_start [m+1] row offsets, beginning with 0.

        chunk_* are [n], with `chunk_sequence` counted from the first piece and `chunk_start` from row 0.
        """
        n, C = len(chunk_start), chunk_size
        tokens = int(piece_start[-1])
        offsets = np.arange(C)
        inside = offsets < chunk_len[:, None]
        whole = n * C == tokens and bool(inside.all())
        ranks = int(chunk_rank.max()) + 1
        order = [np.flatnonzero(chunk_rank == rank).astype(np.int32) for rank in range(ranks)]
        tracked = np.flatnonzero(chunk_track >= 0)
        return cls(
            tokens=tokens,
            chunks=n,
            chunk_size=C,
            rows=None
            if whole
            else index_tensor(
                (chunk_start[:, None] + np.minimum(offsets, chunk_len[:, None] - 1)).ravel(), device
            ),
            padding=None if inside.all() else index_tensor(~inside, device).bool(),
            unpadded=None if whole else index_tensor(np.flatnonzero(inside.ravel()), device),
            rank_chunks=[_slice_or_index(chunks, device) for chunks in order],
            rank_before=[_slice_or_index((chunks - 1).astype(np.int32), device) for chunks in order],
            last=index_tensor(np.flatnonzero(np.diff(chunk_sequence, append=-1) != 0), device),
            slots=SlotPlan.build(slot_in, slot_out, np.full_like(slot_in, -1), device),
            tracked=index_tensor(tracked, device) if len(tracked) else None,
            tracked_slots=index_tensor(chunk_track[tracked], device) if len(tracked) else None,
            tracked_slot_list=chunk_track[tracked].tolist(),
            piece_start=piece_start.tolist(),
            tracked_piece=chunk_sequence[tracked],
            tracked_end=(chunk_start + chunk_len)[tracked],
        )


def _slice_or_index(chunks: IntArray, device: torch.device) -> torch.Tensor | slice:
    """A slice where the chunks are neighbours (one sequence, or the last ranks): no copy is needed then."""
    first, last = int(chunks[0]), int(chunks[-1])
    if last - first == len(chunks) - 1:
        return slice(first, last + 1)
    return index_tensor(chunks, device)
