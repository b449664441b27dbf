"""Index tensors of one step, made once and used by every layer. Pure host arithmetic over `HostBatch`."""

from dataclasses import dataclass

import numpy as np
import torch

from mamba_kernels.paged_attention import AttentionPlan
from mamba_kernels.slot_plan import SlotPlan, index_tensor
from mamba_kernels.ssd_prefill import ChunkPlan
from mamba_server.model.forward_batch import ForwardBatch, IntArray


@dataclass(frozen=True, slots=True)
class StepPlans:
    """What the layers need to know about a batch."""

    tokens: int
    decodes: int
    """The first rows, one per decoding sequence; the others prefill."""
    decode: SlotPlan | None
    prefill: list[tuple[slice, ChunkPlan]]
    """Rows of the batch and the plan of the pieces there; several where their states would be too many."""
    attention: AttentionPlan | None
    """None in a model without attention."""
    positions: torch.Tensor
    """[T] int32: place of each new token in its sequence"""
    page: torch.Tensor
    """[T] int64: page of each new token's key and value"""
    offset: torch.Tensor
    """[T] int64: its place in the page"""

    @classmethod
    def build(
        cls,
        batch: ForwardBatch,
        *,
        recurrent: bool,
        attention: bool,
        most_chunks: int | None = None,
        gathered: bool = True,
    ) -> "StepPlans":
        """`most_chunks`: of pieces that are scanned together (or of one piece); None = any number.
        `gathered`: as of `AttentionPlan.build`."""
        host, device, D = batch.host, batch.positions.device, batch.decodes
        return cls(
            tokens=batch.tokens,
            decodes=D,
            decode=SlotPlan.build(
                host.slot_in[:D],
                host.slot_out[:D],
                host.decode_track,
                device,
                *_noise(batch, slice(0, D)),
                resident=batch.decode_routes,
            )
            if recurrent and D
            else None,
            prefill=[_prefill(batch, *pieces) for pieces in _together(batch, most_chunks)]
            if recurrent
            else [],
            attention=AttentionPlan.build(
                decodes=D,
                query_start=host.query_start,
                context_len=host.context_len,
                page_table=batch.page_table,
                table_row=host.table_row,
                page_size=batch.page_size,
                device=device,
                gathered=gathered,
                resident=(batch.table_row, batch.context_len, batch.query_start),
            )
            if attention
            else None,
            positions=batch.positions,
            page=index_tensor(host.kv_row // batch.page_size, device),
            offset=index_tensor(host.kv_row % batch.page_size, device),
        )


def _together(batch: ForwardBatch, most_chunks: int | None) -> list[tuple[int, int]]:
    """(first, end) of the sequences whose pieces are scanned together."""
    first, groups, chunks = batch.decodes, list[tuple[int, int]](), 0
    counts = np.bincount(batch.host.chunk_sequence, minlength=batch.sequences).tolist()
    for piece in range(batch.decodes, batch.sequences):
        if most_chunks is not None and piece > first and chunks + counts[piece] > most_chunks:
            groups.append((first, piece))
            first, chunks = piece, 0
        chunks += counts[piece]
    return [*groups, (first, batch.sequences)] if batch.sequences > first else groups


def _prefill(batch: ForwardBatch, first: int, end: int) -> tuple[slice, ChunkPlan]:
    host = batch.host
    rows = slice(int(host.query_start[first]), int(host.query_start[end]))
    some = slice(*np.searchsorted(host.chunk_sequence, (first, end)).tolist())
    noise, on_device = _noise(batch, rows)
    return rows, ChunkPlan.build(
        chunk_start=host.chunk_start[some] - rows.start,
        chunk_len=host.chunk_len[some],
        chunk_sequence=host.chunk_sequence[some] - first,
        chunk_rank=host.chunk_rank[some],
        chunk_track=host.chunk_track[some],
        slot_in=host.slot_in[first:end],
        slot_out=host.slot_out[first:end],
        piece_start=host.query_start[first : end + 1] - rows.start,
        chunk_size=batch.chunk_size,
        device=batch.positions.device,
        noise=noise,
        device_noise=on_device,
    )


def _noise(batch: ForwardBatch, rows: slice) -> tuple[IntArray | None, torch.Tensor | None]:
    """On the host and on the device; None where no state is rounded."""
    noise = batch.host.state_noise
    return (noise[rows], batch.state_noise[rows]) if len(noise) else (None, None)
