"""The plans of one step, which all layers share: host arithmetic over `HostBatch`."""

from dataclasses import dataclass

import numpy as np
import torch

from mamba_kernels.packed_integers import send_together
from mamba_kernels.paged_attention import AttentionPlan
from mamba_kernels.slot_plan import IntArray, SlotPlan
from mamba_kernels.ssd_prefill import ChunkPlan
from mamba_kernels.state_replay import RingPlan
from mamba_server.model.forward_batch import ForwardBatch
from mamba_server.model.replay import ReplayMemory, ReplayPlan


@dataclass(frozen=True, slots=True)
class StepPlans:
    """The plans of one step: which rows, slots and pages each layer reads and writes."""

    tokens: int
    decodes: int
    """Number of rows that decode, drafts included; they come first, and the others prefill."""
    decode: SlotPlan | None
    """Plan of the rows that decode, without drafts."""
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
    replay: ReplayPlan | None = None
    """Plan of drafts, and of accepted drafts that live slots lack; None = there is neither."""
    ring: RingPlan | None = None
    """Rows that decode and do not all write their states; None = all do."""

    @classmethod
    def of_head(
        cls,
        rows: IntArray,
        positions: IntArray,
        pages: IntArray,
        *,
        page_table: torch.Tensor,
        page_size: int,
        gathered: bool,
    ) -> "StepPlans":
        """Plan one token of each of n sequences in the layer of a head for drafts.

        Args:
            rows: [n] row of each sequence in the page table.
            positions: [n] position of each token.
            pages: [n] page of each token.
            page_table: [R, W] pages of all sequences, on the device.
            page_size: tokens of a page.
            gathered: see `AttentionPlan.build`.
        """
        device, n = page_table.device, len(rows)
        sent = {
            "positions": positions,
            "page": pages,
            "offset": positions % page_size,
            "rows": rows,
            "context": positions + 1,
            "query": np.arange(n + 1, dtype=np.int32),
        }
        tensors = send_together(sent, device)
        attention = AttentionPlan.build(
            decodes=n,
            query_start=sent["query"],
            context_len=sent["context"],
            page_table=page_table,
            table_row=rows,
            page_size=page_size,
            device=device,
            gathered=gathered,
            resident=(tensors["rows"], tensors["context"], tensors["query"]),
        )
        return cls(
            tokens=n,
            decodes=n,
            decode=None,
            prefill=[],
            attention=attention,
            positions=tensors["positions"],
            page=tensors["page"],
            offset=tensors["offset"],
        )

    @classmethod
    def build(
        cls,
        batch: ForwardBatch,
        *,
        recurrent: bool,
        attention: bool,
        gathered: bool = True,
        memory: ReplayMemory | None = None,
    ) -> "StepPlans":
        """Plan the step of `batch`.

        `recurrent` and `attention` say which kinds of layers the model has. `gathered` is described at
        `AttentionPlan.build`. `memory` is the memory of drafts; None = the engine has no drafts.
        """
        host, device, D = batch.host, batch.positions.device, batch.decodes
        replay, cut = None, D
        if host.replay is not None and memory is not None:
            cut = D - host.replay.rows
            replay = ReplayPlan.build(host.replay, memory, cut, host.state_noise, device)
        return cls(
            tokens=batch.tokens,
            decodes=D,
            decode=SlotPlan.build(
                host.slot_in[:cut],
                host.slot_out[:cut],
                host.decode_track[:cut],
                device,
                host.state_noise[:cut] if len(host.state_noise) else None,
                resident_noise=batch.decode_slots[3, :cut],
                resident=batch.decode_slots[:3, :cut],
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
            replay=replay,
            ring=None if host.ring is None or not recurrent else RingPlan(device, host.ring, batch.ring),
        )
