"""Index tensors of one step, made once and used by every layer. Pure host arithmetic over `HostBatch`."""

from dataclasses import dataclass

import torch

from mamba_kernels.paged_attention import AttentionPlan
from mamba_kernels.slot_plan import SlotPlan, index_tensor
from mamba_kernels.ssd_prefill import ChunkPlan
from mamba_server.model.forward_batch import ForwardBatch


@dataclass(frozen=True, slots=True)
class StepPlans:
    """What the layers need to know about a batch."""

    tokens: int
    decodes: int
    """The first rows, one per decoding sequence; the others prefill."""
    decode: SlotPlan | None
    prefill: ChunkPlan | None
    attention: AttentionPlan | None
    """None in a model without attention."""
    page: torch.Tensor
    """[T] int64: page of each new token's key and value"""
    offset: torch.Tensor
    """[T] int64: its place in the page"""

    @classmethod
    def build(cls, batch: ForwardBatch, *, recurrent: bool, attention: bool) -> "StepPlans":
        host, device, D = batch.host, batch.positions.device, batch.decodes
        return cls(
            tokens=batch.tokens,
            decodes=D,
            decode=SlotPlan.build(host.slot_in[:D], host.slot_out[:D], host.decode_track, device)
            if recurrent and D
            else None,
            prefill=ChunkPlan.build(
                chunk_start=host.chunk_start - D,
                chunk_len=host.chunk_len,
                chunk_sequence=host.chunk_sequence - D,
                chunk_rank=host.chunk_rank,
                chunk_track=host.chunk_track,
                slot_in=host.slot_in[D:],
                slot_out=host.slot_out[D:],
                piece_start=host.query_start[D:] - D,
                chunk_size=batch.chunk_size,
                device=device,
            )
            if recurrent and batch.sequences > D
            else None,
            attention=AttentionPlan.build(
                decodes=D,
                query_start=host.query_start,
                context_len=host.context_len,
                page_table=host.page_table,
                page_size=batch.page_size,
                device=device,
            )
            if attention
            else None,
            page=index_tensor(host.kv_row // batch.page_size, device),
            offset=index_tensor(host.kv_row % batch.page_size, device),
        )
