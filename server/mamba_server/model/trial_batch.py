"""A step that is nobody's, for compiling what steps with pieces need before anyone waits for it."""

import numpy as np

from mamba_server.model.forward_batch import HostBatch


def trial_batch(chunk: int, spare_row: int) -> HostBatch:
    """A decode, a piece of two chunks with a checkpoint, and one of one token, all of padding.

    `chunk`: tokens of a chunk; `spare_row`: nobody's row in the table of pages. States go to slot 0, keys and
    values to page 0.
    """
    lengths = np.array([1, chunk + 1, 1], np.int32)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    tokens = int(starts[-1])
    return HostBatch(
        positions=np.concatenate([np.arange(length, dtype=np.int32) for length in lengths]),
        token_sequence=np.repeat(np.arange(3, dtype=np.int32), lengths),
        query_start=starts,
        context_len=lengths,
        slot_in=np.full(3, -1, np.int32),
        slot_out=np.array([-1, 0, 0], np.int32),
        decode_track=np.full(1, -1, np.int32),
        table_row=np.full(3, spare_row, np.int32),
        kv_row=np.zeros(tokens, np.int32),
        chunk_start=np.array([1, 1 + chunk, 2 + chunk], np.int32),
        chunk_len=np.array([chunk, 1, 1], np.int32),
        chunk_sequence=np.array([1, 1, 2], np.int32),
        chunk_rank=np.array([0, 1, 0], np.int32),
        chunk_track=np.array([-1, 0, -1], np.int32),
        logits_rows=starts[1:] - 1,
    )
