"""A step's integers: contradictions are found by the rule they break, and all of them reach the device."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mamba_server.model.forward_batch import COPIED_ARRAYS, ForwardBatch, HostBatch

CHUNK, PAGE = 4, 2
PAGES = np.array([[4, 5, 6], [6, 7, 0], [1, 2, -1]], np.int32)


def ints(*values: Any) -> Any:
    return np.array(values, dtype=np.int32)


def step() -> HostBatch:
    """Build a step: sequence 0 decodes at depth 3, sequence 1 prefills 6 tokens in two chunks."""
    return HostBatch(
        positions=ints(3, 0, 1, 2, 3, 4, 5),
        token_sequence=ints(0, 1, 1, 1, 1, 1, 1),
        query_start=ints(0, 1, 7),
        context_len=ints(4, 6),
        slot_in=ints(1, -1),
        slot_out=ints(1, 2),
        decode_track=ints(5),
        table_row=ints(2, 0),
        kv_row=ints(5, 8, 9, 10, 11, 12, 13),
        chunk_start=ints(1, 5),
        chunk_len=ints(4, 2),
        chunk_sequence=ints(1, 1),
        chunk_rank=ints(0, 1),
        chunk_track=ints(7, -1),
        logits_rows=ints(0, 6),
    )


def batch(host: HostBatch, token_ids: Any) -> ForwardBatch:
    return ForwardBatch.from_host(
        host,
        token_ids=token_ids,
        page_table=torch.from_numpy(PAGES),
        chunk_size=CHUNK,
        page_size=PAGE,
        device=torch.device("cpu"),
    )


def test_a_sound_step_passes() -> None:
    step().check(CHUNK, PAGE, PAGES)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"query_start": ints(0, 1, 6)}, "query_start spans the rows"),
        ({"query_start": ints(1, 2, 7)}, "query_start spans the rows"),
        ({"query_start": ints(0, 2, 7)}, "decodes have one token, pieces some"),
        ({"query_start": ints(0, 1, 1, 7), "context_len": ints(4, 6, 6)}, "decodes have one token"),
        ({"token_sequence": ints(0, 1, 1, 0, 1, 1, 1)}, "token_sequence"),
        ({"context_len": ints(4, 7)}, "context ends at the last token"),
        ({"slot_out": ints(1, 0)}, "the padding slot belongs to no sequence"),
        ({"slot_out": ints(1, -1)}, "the padding slot belongs to no sequence"),
        ({"chunk_start": ints(2, 5)}, "chunks begin with the first piece"),
        ({"chunk_len": ints(4, 1)}, "chunks cover the pieces without gaps"),
        ({"chunk_start": ints(1, 4)}, "chunks cover the pieces without gaps"),
        ({"chunk_start": ints(1, 6), "chunk_len": ints(5, 1)}, "no chunk is longer than the chunk size"),
        ({"chunk_sequence": ints(1, 0)}, "chunks do not cross sequences"),
        ({"chunk_rank": ints(0, 0)}, "chunk_rank counts within the sequence"),
        ({"chunk_rank": ints(1, 2)}, "chunk_rank counts within the sequence"),
        ({"kv_row": ints(5, 8, 9, 10, 11, 13, 12)}, "kv_row follows from the page table"),
        ({"table_row": ints(0, 2)}, "kv_row follows"),
    ],
)  # fmt: skip
def test_a_contradiction_is_named_by_the_rule_it_breaks(changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=f"^inconsistent batch: {rule}"):
        replace(step(), **changes).check(CHUNK, PAGE, PAGES)


def test_a_chunk_across_two_sequences_is_found() -> None:
    two = replace(
        step(),
        positions=ints(3, 0, 1, 2, 0, 1, 2),
        token_sequence=ints(0, 1, 1, 1, 2, 2, 2),
        query_start=ints(0, 1, 4, 7),
        context_len=ints(4, 3, 3),
        slot_in=ints(1, -1, -1),
        slot_out=ints(1, 2, 3),
        table_row=ints(2, 0, 1),
        kv_row=ints(5, 8, 9, 10, 12, 13, 14),
        chunk_start=ints(1, 4),
        chunk_len=ints(3, 3),
        chunk_sequence=ints(1, 2),
        chunk_rank=ints(0, 0),
    )
    two.check(CHUNK, PAGE, PAGES)
    with pytest.raises(ValueError, match="chunks do not cross sequences"):
        replace(two, chunk_start=ints(1, 5), chunk_len=ints(4, 2)).check(CHUNK, PAGE, PAGES)


def test_every_array_arrives_with_its_shape_and_values() -> None:
    host = step()
    made = batch(host, ints(9, 8, 7, 6, 5, 4, 3))
    for name in COPIED_ARRAYS:
        arrived = getattr(made, name)
        assert arrived.dtype == torch.int32
        assert np.array_equal(arrived.numpy(), getattr(host, name)), name
    assert made.token_ids.tolist() == [9, 8, 7, 6, 5, 4, 3]
    assert (made.page * PAGE + made.offset).tolist() == host.kv_row.tolist()
    assert made.decode_slots.tolist() == [[1], [1], [5], [0]]
    assert (made.tokens, made.decodes, made.sequences) == (7, 1, 2)
    assert (made.chunk_size, made.page_size) == (CHUNK, PAGE)


def test_pieces_are_counted_from_the_first_of_them() -> None:
    pieces = batch(step(), ints(*range(7))).pieces
    assert pieces is not None
    chunks = pieces.on_device
    assert (pieces.tokens, pieces.chunks, pieces.longest_chunk, pieces.piece_start) == (6, 2, 4, [0, 6])
    assert (chunks.piece_chunk.tolist(), chunks.chunk_start.tolist()) == ([0, 2], [0, 4, 6])
    assert (chunks.chunk_track.tolist(), chunks.chunk_piece.tolist()) == ([7, -1], [0, 0])
    assert pieces.slots.device_routes.tolist() == [[-1], [2], [-1]]


def test_what_is_beside_the_step_travels_with_it() -> None:
    made = ForwardBatch.from_host(
        step(), token_ids=ints(*range(7)), page_table=torch.from_numpy(PAGES), chunk_size=CHUNK,
        page_size=PAGE, device=torch.device("cpu"), extras={"rows": ints(2, 0)},
    )  # fmt: skip
    assert made.extras["rows"].tolist() == [2, 0]
    assert made.extras["rows"].untyped_storage().data_ptr() == made.page.untyped_storage().data_ptr()


def test_the_batch_keeps_its_integers_when_the_host_reuses_its_arrays() -> None:
    host = step()
    made = batch(host, ints(1, 2, 3, 4, 5, 6, 7))
    host.positions[:] = 99
    assert made.positions.tolist() == [3, 0, 1, 2, 3, 4, 5]


def test_tokens_that_are_on_the_device_already_stay_where_they_are() -> None:
    sampled = torch.arange(7, dtype=torch.int32)
    assert batch(step(), sampled).token_ids is sampled


def test_a_step_of_decodes_alone_has_no_chunks() -> None:
    none = ints()
    host = replace(
        step(), positions=ints(3), token_sequence=ints(0), query_start=ints(0, 1), context_len=ints(4),
        slot_in=ints(1), slot_out=ints(1), table_row=ints(2), kv_row=ints(5),
        chunk_start=none, chunk_len=none, chunk_sequence=none, chunk_rank=none, chunk_track=none,
        logits_rows=ints(0),
    )  # fmt: skip
    host.check(CHUNK, PAGE, PAGES)
    made = batch(host, ints(1))
    assert made.pieces is None
    assert (made.decodes, made.sequences) == (1, 1)
