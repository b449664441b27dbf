"""The integers of decode steps in fixed device memory, from which a captured step reads them.

The runner creates one object for each number of rows and writes it in every step; the plans over it are the
same for all steps with that number of rows.
"""

import numpy as np
import torch

from mamba_kernels.paged_attention import AttentionPlan
from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.state_replay import RingPlan
from mamba_kernels.transfer import aligned
from mamba_server.model.forward_batch import HostBatch
from mamba_server.model.staged_buffer import StagedBuffer
from mamba_server.model.step_plans import StepPlans


class DecodeInputs:
    """Inputs of a step of `rows` sequences of one token each; rows without a sequence are padding.

    `spare_row`: unused row of the page table and of other tables with a row for each sequence. A padding row
    has no context, starts from the zero state and stores no state; its key and value go to page 0, the
    padding page. It has no lane of a ring and leaves nothing there.
    """

    def __init__(self, rows: int, spare_row: int, page_table: torch.Tensor) -> None:
        device = page_table.device
        self.rows = rows
        self._padding = np.array([-1, -1, -1, spare_row, 0, 0, 0, 0, 0, -1, 0, 0], np.int32)[:, None]
        self._staged = StagedBuffer(torch.from_numpy(np.repeat(self._padding, aligned(rows), 1)), device)
        self._device = self._staged.on_device
        self._page_table = page_table
        self._query_start = torch.arange(rows + 1, dtype=torch.int32, device=device)
        self.table_row, self.context_len = self._device[3, :rows], self._device[4, :rows]
        """[rows] int32 each: row of each sequence in the page table, and its tokens, the new one included."""

    def write(self, batch: HostBatch, page_size: int) -> None:
        """Put the integers of a step into the staging buffer and start their copy to the device.

        `batch` has only decodes, at most `self.rows` of them; the other rows become padding. `page_size`
        (tokens per page) splits each `kv_row` into a page and an offset.
        """
        n = len(batch.context_len)
        fields = self._staged.next().numpy()
        fields[0, :n], fields[1, :n], fields[2, :n] = batch.slot_in, batch.slot_out, batch.decode_track
        fields[3, :n], fields[4, :n] = batch.table_row, batch.context_len
        fields[5, :n], fields[6, :n] = batch.kv_row // page_size, batch.kv_row % page_size
        fields[7, :n] = batch.state_noise if len(batch.state_noise) else 0
        fields[8, :n] = batch.positions
        if batch.ring is not None:
            fields[9:12, :n] = batch.ring
        fields[:, n:] = self._padding
        self._staged.send()

    def plans(self, *, recurrent: bool, attention: bool, ring: bool = False) -> StepPlans:
        """Return plans that read their integers from this memory, and so hold for all steps of `rows` rows.

        Only Triton's kernels can follow such plans. `ring`: whether the steps have a ring.
        """
        rows, fields = self.rows, self._device
        return StepPlans(
            tokens=rows,
            decodes=rows,
            decode=SlotPlan(fields.device, None, fields[:3, :rows], resident_noise=fields[7, :rows])
            if recurrent
            else None,
            prefill=[],
            attention=AttentionPlan(
                groups=[],
                pieces=[],
                tokens=rows,
                decodes=rows,
                longest_piece=0,
                page_table=self._page_table,
                table_row=self.table_row,
                context_len=self.context_len,
                query_start=self._query_start,
            )
            if attention
            else None,
            positions=fields[8, :rows],
            page=fields[5, :rows],
            offset=fields[6, :rows],
            ring=RingPlan(fields.device, None, fields[9:12, :rows]) if ring else None,
        )
