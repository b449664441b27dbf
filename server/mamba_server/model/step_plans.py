"""The plans of one step, which all layers share: host arithmetic over `HostBatch`."""

from dataclasses import dataclass

import torch

from mamba_kernels.paged_attention import AttentionPlan
from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.ssd_prefill import ChunkPlan
from mamba_server.model.forward_batch import ForwardBatch


@dataclass(frozen=True, slots=True)
class StepPlans:
    """The plans of one step: which rows, slots and pages each layer reads and writes."""

    tokens: int
    decodes: int
    """Number of rows that decode, one per sequence; they come first, and the others prefill."""
    decode: SlotPlan | None
    prefill: list[tuple[slice, ChunkPlan]]
    """Rows of the batch and the plan of the pieces there; empty in a step that only decodes."""
    attention: AttentionPlan | None
    """Plan of attention; None in a model without attention."""
    positions: torch.Tensor
    """[T] int32: position of each new token in its sequence"""
    page: torch.Tensor
    """[T] int32: page of each new token's key and value"""
    offset: torch.Tensor
    """[T] int32: offset of each new token's key and value in its page"""

    @classmethod
    def build(
        cls, batch: ForwardBatch, *, recurrent: bool, attention: bool, gathered: bool = True
    ) -> "StepPlans":
        """Plan the step of `batch`. `gathered`: see `AttentionPlan.build`."""
        host, device, D = batch.host, batch.positions.device, batch.decodes
        return cls(
            tokens=batch.tokens,
            decodes=D,
            decode=SlotPlan.build(
                host.slot_in[:D],
                host.slot_out[:D],
                host.decode_track,
                device,
                host.state_noise[:D] if len(host.state_noise) else None,
                resident_noise=batch.decode_slots[3],
                resident=batch.decode_slots[:3],
            )
            if recurrent and D
            else None,
            prefill=[(slice(D, batch.tokens), batch.pieces)]
            if recurrent and batch.pieces is not None
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
            page=batch.page,
            offset=batch.offset,
        )
