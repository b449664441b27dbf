"""Steps without requests, with which kernels are compiled and memory is measured before the engine is ready.

All rows are padding: states go to slot 0, keys and values to page 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mamba_server.model.forward_batch import HostBatch


@dataclass(frozen=True, slots=True)
class TrialPiece:
    """One sequence of a step without requests: its last `tokens` tokens of `context` are computed."""

    tokens: int
    context: int


def trial_batch(
    decodes: Sequence[int], pieces: Sequence[TrialPiece], *, chunk: int, spare_row: int, scored: bool = False
) -> HostBatch:
    """Build a step of decodes and pieces; a piece of several chunks writes a checkpoint at its end.

    `decodes` are the contexts of the decodes, and `chunk` is the number of tokens of a chunk. `spare_row` is
    an unused row of the page table. With `scored`, the logits of all rows are computed, as for
    log-probabilities of a prompt.
    """
    trials = [TrialPiece(1, context) for context in decodes] + list(pieces)
    lengths = np.array([trial.tokens for trial in trials], np.int32)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    tokens, sequences = int(starts[-1]), len(trials)
    chunk_rows = [
        (int(starts[number]) + first, min(chunk, trial.tokens - first), number, rank)
        for number, trial in enumerate(trials[len(decodes) :], len(decodes))
        for rank, first in enumerate(range(0, trial.tokens, chunk))
    ]
    chunks = np.array(chunk_rows, np.int32).reshape(-1, 4)
    last = np.append(chunks[1:, 2] != chunks[:-1, 2], True) if len(chunks) else np.zeros(0, bool)
    return HostBatch(
        positions=np.concatenate(
            [np.arange(trial.context - trial.tokens, trial.context, dtype=np.int32) for trial in trials]
        ),
        token_sequence=np.repeat(np.arange(sequences, dtype=np.int32), lengths),
        query_start=starts,
        context_len=np.array([trial.context for trial in trials], np.int32),
        # All start from the zero state: slot 0 holds no state, but keys and values of padding.
        slot_in=np.full(sequences, -1, np.int32),
        slot_out=np.zeros(sequences, np.int32),
        decode_track=np.full(len(decodes), -1, np.int32),
        table_row=np.full(sequences, spare_row, np.int32),
        kv_row=np.zeros(tokens, np.int32),
        chunk_start=chunks[:, 0].copy(),
        chunk_len=chunks[:, 1].copy(),
        chunk_sequence=chunks[:, 2].copy(),
        chunk_rank=chunks[:, 3].copy(),
        chunk_track=np.where(last & (chunks[:, 3] > 0), 0, -1).astype(np.int32),
        logits_rows=np.arange(tokens, dtype=np.int32) if scored else starts[1:] - 1,
    )
