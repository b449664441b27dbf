"""Steps that are nobody's: what they need is compiled and what they take is measured before anyone waits.

All of padding: states go to slot 0, keys and values to page 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mamba_server.model.forward_batch import HostBatch


@dataclass(frozen=True, slots=True)
class TrialPiece:
    """Tokens of one sequence: the last `tokens` of `context`."""

    tokens: int
    context: int


def trial_batch(
    decodes: Sequence[int], pieces: Sequence[TrialPiece], *, chunk: int, spare_row: int, scored: bool = False
) -> HostBatch:
    """A step of decodes and pieces; a piece of several chunks leaves a checkpoint at its end.

    `decodes`: context of each; `chunk`: tokens of a chunk; `spare_row`: nobody's row in the table of pages;
    `scored`: the logits of all rows are wanted, as for log-probabilities of a prompt.
    """
    own = [TrialPiece(1, context) for context in decodes] + list(pieces)
    lengths = np.array([each.tokens for each in own], np.int32)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    tokens, sequences = int(starts[-1]), len(own)
    cut = [
        (int(starts[number]) + first, min(chunk, each.tokens - first), number, rank)
        for number, each in enumerate(own[len(decodes) :], len(decodes))
        for rank, first in enumerate(range(0, each.tokens, chunk))
    ]
    chunks = np.array(cut, np.int32).reshape(-1, 4)
    last = np.append(chunks[1:, 2] != chunks[:-1, 2], True) if len(chunks) else np.zeros(0, bool)
    return HostBatch(
        positions=np.concatenate(
            [np.arange(each.context - each.tokens, each.context, dtype=np.int32) for each in own]
        ),
        token_sequence=np.repeat(np.arange(sequences, dtype=np.int32), lengths),
        query_start=starts,
        context_len=np.array([each.context for each in own], np.int32),
        # From nothing: slot 0 holds what is no state, keys among it.
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
