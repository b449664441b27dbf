"""Inputs that stay in one place say of each step what its batch says, and nothing of the one before."""

import numpy as np
import torch

from mamba_server.model.decode_inputs import DecodeInputs
from mamba_server.model.forward_batch import HostBatch

PAGE = 16
SPARE = 5


def batch(*rows: tuple[int, int, int, int, int, int]) -> HostBatch:
    """Return a batch of (slot_in, slot_out, track, table_row, context_len, kv_row)."""
    columns = [np.array(each, np.int32) for each in zip(*rows, strict=True)]
    none = np.empty(0, np.int32)
    return HostBatch(
        positions=columns[4] - 1, token_sequence=none, query_start=none, context_len=columns[4],
        slot_in=columns[0], slot_out=columns[1], decode_track=columns[2], table_row=columns[3],
        kv_row=columns[5], chunk_start=none, chunk_len=none, chunk_sequence=none, chunk_rank=none,
        chunk_track=none, logits_rows=none,
    )  # fmt: skip


def test_rows_are_those_of_the_step_and_the_others_are_padding() -> None:
    inputs = DecodeInputs(4, SPARE, torch.zeros(SPARE + 1, 8, dtype=torch.int32))
    plans = inputs.plans(recurrent=True, attention=True)
    assert plans.decode is not None
    assert plans.attention is not None
    places = [each.data_ptr() for each in (plans.decode.device_routes, plans.page, inputs.context_len)]

    inputs.write(
        batch((2, 2, 7, 0, 33, 5 * PAGE), (3, 3, -1, 1, 9, 2 * PAGE + 8), (4, 4, 6, 3, 1, PAGE)), PAGE
    )
    assert plans.decode.device_routes.tolist() == [[2, 3, 4, -1], [2, 3, 4, -1], [7, -1, 6, -1]]
    assert plans.attention.table_row.tolist() == [0, 1, 3, SPARE]
    assert plans.attention.context_len.tolist() == [33, 9, 1, 0]
    assert (plans.page.tolist(), plans.offset.tolist()) == ([5, 2, 1, 0], [0, 8, 0, 0])

    inputs.write(batch((9, 9, -1, 2, 17, 4 * PAGE)), PAGE)
    assert plans.decode.device_routes.tolist() == [[9, -1, -1, -1], [9, -1, -1, -1], [-1] * 4]
    assert plans.attention.table_row.tolist() == [2, SPARE, SPARE, SPARE]
    assert plans.attention.context_len.tolist() == [17, 0, 0, 0]
    assert plans.page.tolist() == [4, 0, 0, 0]
    assert places == [
        each.data_ptr() for each in (plans.decode.device_routes, plans.page, inputs.context_len)
    ]


def test_kernels_find_every_part_at_16_bytes() -> None:
    for rows in (1, 2, 3, 5, 8):
        inputs = DecodeInputs(rows, SPARE, torch.zeros(SPARE + 1, 8, dtype=torch.int32))
        plans = inputs.plans(recurrent=True, attention=True)
        assert plans.decode is not None
        base = plans.decode.device_routes.data_ptr()
        parts = (inputs.table_row, inputs.context_len, plans.page, plans.offset)
        assert [(part.data_ptr() - base) % 16 for part in parts] == [0] * 4
