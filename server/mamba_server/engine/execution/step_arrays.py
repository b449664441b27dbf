"""Arrays of a step, built on the host from its schedule: everything the device needs.

They are copied from the batch at launch; the device work reads nothing else, so a commit releases exactly
what its launch named (rule O5 of docs/explanation/state-cache.md). No tensors.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mamba_kernels.stochastic_rounding import noise_words
from mamba_server.cache import Bools, Ints, PersistentBatch, chunk_ends
from mamba_server.engine.sequences.schedule import Schedule
from mamba_server.engine.stepping.step_result import VerifiedDraft
from mamba_server.model.replay import HostReplay
from mamba_server.wire import TokenLogprobs


@dataclass(frozen=True, slots=True)
class StepArrays:
    """Arrays of one step, shaped as in `ForwardBatch`.

    `token_ids` of decodes are placeholders: the device has the true ones. Drafts count as sequences that
    decode, behind all others.
    """

    token_ids: Ints
    positions: Ints
    token_sequence: Ints
    query_start: Ints
    context_len: Ints
    slot_in: Ints
    slot_out: Ints
    decode_track: Ints
    table_row: Ints
    """[S] persistent row of each sequence, which is also its row in the table of pages."""
    kv_row: Ints
    chunk_start: Ints
    chunk_len: Ints
    chunk_sequence: Ints
    chunk_rank: Ints
    chunk_track: Ints
    logits_rows: Ints
    replay: HostReplay | None
    ring: Ints | None
    sampling: list[int]
    """Sequences (0..S) that sample, in the order of the result."""
    checked: list[int]
    """Sequences that sample, then the others: the first entries of `logits_rows` are their last rows."""
    prompt_spans: dict[int, tuple[int, int, Ints]]
    """By piece: (first and last+1 index into `logits_rows`, the tokens that follow)."""
    pooled_rows: dict[int, slice]
    """By piece of a prompt whose hidden states are pooled: their places in `logits_rows`."""


def build(schedule: Schedule, batch: PersistentBatch, chunk: int, page_size: int) -> StepArrays:
    """Build the arrays of `schedule`: decodes first, then pieces, in schedule order."""
    row, behind, drafted = _decode_rows(schedule)
    decodes, pieces = len(row), schedule.pieces
    lengths = np.ones(decodes + len(pieces), np.int32)
    lengths[decodes:] = [piece.stop - piece.start for piece in pieces]
    query_start = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=query_start[1:])
    piece_rows = np.array([piece.sequence.row for piece in pieces], np.int32)
    depth = batch.depth[row] if behind is None else batch.depth[row] + behind
    context = np.concatenate([depth, np.array([piece.stop for piece in pieces], np.int32)])
    positions = np.concatenate(
        [depth - 1, *(np.arange(piece.start, piece.stop, dtype=np.int32) for piece in pieces)]
    )
    token_sequence = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    rows = np.concatenate([row, piece_rows])
    # Without attention there are no pages, and the number does not matter.
    column = np.minimum(positions // page_size, batch.pages.shape[1] - 1)
    kv_row = batch.pages[rows[token_sequence], column] * page_size + positions % page_size
    token_ids = np.concatenate(
        [
            drafted,
            *(piece.sequence.token_ids[piece.start : piece.stop] for piece in pieces),
        ]
    )
    chunks = _chunks(schedule, query_start, chunk, decodes)
    last = query_start[1:] - 1
    sampling = [*range(decodes), *(decodes + i for i, piece in enumerate(pieces) if piece.final)]
    checked = sampling + [decodes + i for i, piece in enumerate(pieces) if not piece.final]
    logits_rows, spans = _logits_rows(schedule, query_start, last[checked], decodes)
    logits_rows, pooled = _pooled_rows(schedule, query_start, sampling, logits_rows, decodes)
    track = np.where(schedule.decode_track > 0, schedule.decode_track, -1).astype(np.int32)
    if schedule.drafts:
        track = np.append(track, np.full(decodes - len(track), -1, np.int32))
    return StepArrays(
        token_ids=token_ids,
        positions=positions.astype(np.int32, copy=False),
        token_sequence=token_sequence,
        query_start=query_start,
        context_len=context,
        slot_in=_join(batch.live[row], [piece.slot_in for piece in pieces]),
        slot_out=_join(batch.live[row], [piece.slot_out for piece in pieces]),
        decode_track=track,
        table_row=rows,
        kv_row=kv_row.astype(np.int32, copy=False),
        chunk_start=chunks[0],
        chunk_len=chunks[1],
        chunk_sequence=chunks[2],
        chunk_rank=chunks[3],
        chunk_track=chunks[4],
        replay=_replay(schedule, batch),
        ring=schedule.decode_ring,
        logits_rows=logits_rows,
        sampling=sampling,
        checked=checked,
        prompt_spans=spans,
        pooled_rows=pooled,
    )


def _join(left: Ints, right: list[int]) -> Ints:
    return np.concatenate([left, np.array(right, np.int32)])


def _decode_rows(schedule: Schedule) -> tuple[Ints, Ints | None, Ints]:
    """Return, for each row that decodes, the persistent row, the distance from the decode, and the token.

    First come the decodes, whose tokens are placeholders, then the first tokens of all drafts, then the
    second ones, and so on. The distance is 0 for a decode and 1 for the first token of a draft. Distances are
    None without drafts.
    """
    decodes = len(schedule.decodes)
    if not schedule.drafts:
        return schedule.decode_rows, None, np.zeros(decodes, np.int32)
    turns = schedule.draft_rows
    indices = [*range(decodes), *(each.index for _, each in turns)]
    behind = np.array([0] * decodes + [turn + 1 for turn, _ in turns], np.int32)
    tokens = np.array([0] * decodes + [int(each.tokens[turn]) for turn, each in turns], np.int32)
    return schedule.decode_rows[indices], behind, tokens


def _replay(schedule: Schedule, batch: PersistentBatch) -> HostReplay | None:
    if not schedule.drafts and not schedule.absorbed:
        return None
    drafts = [each for turn, each in schedule.draft_rows if not turn]
    absorbed = schedule.absorbed
    rows = schedule.decode_rows
    absorbing, drafting = (rows[[each.index for each in some]] for some in (absorbed, drafts))
    counts = np.array([each.count for each in absorbed], np.int32)
    # The step takes the row one token beyond what waits.
    turns = np.arange(counts.max(initial=0), dtype=np.int32)
    depths = (batch.depth[absorbing] - 1 - counts)[:, None] + 1 + turns
    return HostReplay(
        absorbed_slot=batch.live[absorbing],
        absorbed_lane=np.array([each.lane for each in absorbed], np.int32),
        absorbed_count=counts,
        absorbed_noise=noise_words(batch.state_seed[absorbing][:, None], depths),
        draft_slot=batch.live[drafting],
        draft_lane=np.array([each.lane for each in drafts], np.int32),
        draft_len=np.array([len(each.tokens) for each in drafts], np.int32),
    )


def verified_drafts(
    schedule: Schedule, tokens: Ints, finite: Bools, logprobs: dict[int, TokenLogprobs]
) -> list[VerifiedDraft]:
    """Return the result of each draft, from the results of the rows that sample, in their order."""
    rows: dict[int, list[int]] = {}
    for row, (_, each) in enumerate(schedule.draft_rows, len(schedule.decodes)):
        rows.setdefault(each.index, []).append(row)
    verified = []
    for each in schedule.drafts:
        parts = []
        for token, row in zip(each.tokens.tolist(), rows[each.index], strict=True):
            if not finite[row]:
                break
            parts.append((token, int(tokens[row]), logprobs.get(row)))
        verified.append(VerifiedDraft(len(each.tokens), parts))
    return verified


def _chunks(schedule: Schedule, query_start: Ints, chunk: int, decodes: int) -> npt.NDArray[np.int32]:
    """Return int32[5, Cn]: start, length, sequence, rank and checkpoint slot of each chunk."""
    chunks: list[tuple[int, int, int, int, int]] = []
    for index, piece in enumerate(schedule.pieces, decodes):
        tracks = {checkpoint.depth: checkpoint.slot for checkpoint in piece.checkpoints}
        begin, first = piece.start, int(query_start[index])
        for rank, end in enumerate(chunk_ends(piece.start, piece.stop, chunk, tracks)):
            chunks.append((first + begin - piece.start, end - begin, index, rank, tracks.get(end, -1)))
            begin = end
    return np.array(chunks, np.int32).reshape(-1, 5).T.copy()


def _pooled_rows(
    schedule: Schedule, query_start: Ints, sampling: list[int], logits_rows: Ints, decodes: int
) -> tuple[Ints, dict[int, slice]]:
    """Return the rows of logits, then the rows of pooled prompts, and where each pooled piece's rows are."""
    pooled: dict[int, slice] = {}
    parts, index = [logits_rows], len(logits_rows)
    for number, piece in enumerate(schedule.pieces):
        pooling = piece.sequence.params.pooling
        if pooling == "last" and piece.final:
            place = sampling.index(decodes + number)
            pooled[number] = slice(place, place + 1)
        elif pooling == "mean":
            first, tokens = int(query_start[decodes + number]), piece.stop - piece.start
            parts.append(np.arange(first, first + tokens, dtype=np.int32))
            pooled[number] = slice(index, index + tokens)
            index += tokens
    return (np.concatenate(parts) if pooled else logits_rows), pooled


def _logits_rows(
    schedule: Schedule, query_start: Ints, checked: Ints, decodes: int
) -> tuple[Ints, dict[int, tuple[int, int, Ints]]]:
    parts = [checked.astype(np.int32, copy=False)]
    spans: dict[int, tuple[int, int, Ints]] = {}
    index = len(checked)
    for number, piece in enumerate(schedule.pieces):
        sequence = piece.sequence
        if sequence.prompt_logprobs is None or sequence.prompt_done:
            continue
        # Rows [start, stop) predict tokens [start + 1, stop + 1), of which only prompt tokens are scored.
        start, stop = max(piece.start, sequence.unscored), min(piece.stop, sequence.prompt_len - 1)
        if stop <= start:
            continue
        first = int(query_start[decodes + number]) + start - piece.start
        parts.append(np.arange(first, first + stop - start, dtype=np.int32))
        follow = sequence.token_ids[start + 1 : stop + 1].copy()
        spans[number] = (index, index + stop - start, follow)
        index += stop - start
    return np.concatenate(parts), spans
