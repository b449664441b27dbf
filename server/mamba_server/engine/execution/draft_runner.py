"""Device side of a draft model: reads what is new of each sequence, then writes drafts on a copied state.

`prepare` runs on the loop's side; the work that it returns runs on the forward stream, between two steps of
the engine. Drafts are sampled with the parameters, the seed and the position of their sequence, as the step
that checks them samples. Nothing waits for the device between two drafts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import torch

from mamba_kernels.transfer import to_device
from mamba_server.cache import NO_TOKENS, Ints, Tokens, chunk_ends
from mamba_server.engine.execution.host_results import to_host
from mamba_server.engine.execution.sampler import Sampler
from mamba_server.engine.execution.sampling_batch import SamplingBatch, SamplingRow
from mamba_server.engine.speculation.draft_lanes import DraftLanes
from mamba_server.engine.speculation.model_drafts import DraftPiece
from mamba_server.model.cache_views import CacheViews
from mamba_server.model.forward_batch import ForwardBatch, HostBatch
from mamba_server.model.layers.hybrid import HybridModel
from mamba_server.model.layers.step_decoder import step_decoder
from mamba_server.model.page_table import PageTable
from mamba_server.model.trial_batch import TrialPiece, trial_batch

KEPT_BATCHES = 64
"""Sets of sequences whose sampling parameters stay on the device."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Holds what a draft model needs of the engine's sampling: the sampler, and each row's parameters."""

    sampler: Sampler
    row: Callable[[int], SamplingRow]


class DraftRunner:
    """Computes a draft model, a second model that writes drafts for the served one, on one device.

    `catch_up_tokens` is the most tokens that it reads in one call.
    """

    def __init__(
        self,
        model: HybridModel,
        cache: CacheViews,
        lanes: DraftLanes,
        sampling: Sampling,
        *,
        table_width: int,
        page_size: int,
        chunk: int,
        catch_up_tokens: int,
        vocabulary: int,
        device: torch.device,
    ) -> None:
        """Allocate the tables.

        Args:
            model: the draft model.
            cache: its states and pages.
            lanes: sequences that it follows, each with two states and its pages.
            sampling: sampler of the engine.
            table_width: most pages of a lane.
            page_size: tokens of a page.
            chunk: tokens of a chunk.
            catch_up_tokens: most tokens that one step reads.
            vocabulary: number of token ids of the model that checks the drafts.
            device: device of all tensors.
        """
        self._model, self._cache, self.lanes, self._sampling = model, cache, lanes, sampling
        self._page_size, self._chunk, self._device = page_size, chunk, device
        self._catch_up_tokens, self._vocabulary = catch_up_tokens, vocabulary
        self._table = PageTable(lanes.lanes, table_width, device)
        self._last = torch.zeros(lanes.lanes + 1, dtype=torch.int32, device=device)
        """Token that each lane reads next."""
        self._segments: set[int] = set()
        self._batches: dict[tuple[int, ...], list[SamplingBatch]] = {}
        self._decoder = step_decoder(
            model, cache, page_table=self._table.entries, last_token=self._last, most_rows=lanes.lanes + 1
        )
        # Without conversion: the kernels find the best token of rows as the head returns them.
        self._head = model.logits if model.backend.library is None else model.head

    def prepare(self, pieces: list[DraftPiece]) -> Callable[[], Callable[[], list[Tokens]]]:
        """Return the work that reads `pieces` and drafts behind them.

        Its result is a function that returns the drafts of each piece. A piece has no drafts if the text of
        its sequence goes on behind it.
        """
        places = self.lanes.unsent_pages([piece.lane for piece in pieces])
        # Rows that decode come first.
        order = sorted(range(len(pieces)), key=lambda place: len(pieces[place].token_ids) > 1)
        ordered = [pieces[place] for place in order]
        reading = _reading(ordered, self._chunk, self._page_size)
        writing = [place for place, piece in enumerate(ordered) if piece.drafts]
        most = max((piece.drafts for piece in pieces), default=0)
        turns = [[place for place in writing if ordered[place].drafts > turn] for turn in range(most)]
        steps = [
            self._drafting([ordered[place] for place in places_of_turn], turn)
            for turn, places_of_turn in enumerate(turns)
            if turn
        ]

        def work() -> Callable[[], list[Tokens]]:
            with torch.inference_mode():
                self._table.write(*places)
                hidden = self._read(reading, ordered)
                ids: list[torch.Tensor] = []
                for turn, places_of_turn in enumerate(turns):
                    drafting = [ordered[place] for place in places_of_turn]
                    if turn:
                        hidden = self._decode(steps[turn - 1])
                    elif len(writing) < len(ordered):
                        hidden = hidden[_index(writing, self._device)]
                    sampled = self._sample(hidden, drafting, turn)
                    self._last.index_copy_(
                        0, _index([piece.lane.number for piece in drafting], self._device), sampled
                    )
                    ids.append(sampled)
                landed = to_host(torch.cat(ids)) if ids else None

            def read() -> list[Tokens]:
                drafts: list[list[int]] = [[] for _ in pieces]
                if landed is not None:
                    in_order = (place for places_of_turn in turns for place in places_of_turn)
                    for place, token in zip(in_order, landed.tolist(), strict=True):
                        drafts[order[place]].append(token)
                return [np.array(tokens, np.int32) for tokens in drafts]

            return read

        return work

    def warm_up(self) -> bool:
        """Compute padding on the forward stream, so that no kernel is compiled while the engine serves."""
        lanes = self.lanes.lanes
        for sequences in sorted({1, 2, lanes}):
            self._decode(trial_batch([1] * sequences, (), chunk=self._chunk, spare_row=lanes))
        for tokens in sorted({2, self._chunk, self._catch_up_tokens}):
            piece = TrialPiece(tokens, tokens)
            host = trial_batch((), [piece], chunk=self._chunk, spare_row=lanes)
            with torch.inference_mode():
                self._hidden(host, np.zeros(tokens, np.int32))
        return True

    # --- device work ---------------------------------------------------------------------------------

    def _read(self, host: HostBatch, pieces: list[DraftPiece]) -> torch.Tensor:
        """Read the pieces into the states of their lanes; return the hidden states of their last tokens."""
        token_ids = np.concatenate([piece.token_ids for piece in pieces])
        if self._decoder is not None and len(host.decode_track) == len(pieces):
            lanes = _index(host.table_row.tolist(), self._device)
            self._last.index_copy_(0, lanes, torch.from_numpy(token_ids))
            return self._decoder(host)
        return self._hidden(host, token_ids)

    def _decode(self, host: HostBatch) -> torch.Tensor:
        """Read the last token of each sequence of `host`, which only decodes."""
        with torch.inference_mode():
            if self._decoder is not None:
                return self._decoder(host)
            rows = to_device(torch.from_numpy(host.table_row), self._device)
            return self._hidden(host, self._last.index_select(0, rows))

    def _hidden(self, host: HostBatch, token_ids: torch.Tensor | Ints) -> torch.Tensor:
        batch = ForwardBatch.from_host(
            host,
            token_ids=token_ids,
            page_table=self._table.entries,
            chunk_size=self._chunk,
            page_size=self._page_size,
            device=self._device,
            segments=self._segments,
        )
        hidden = self._model.hidden(batch, self._cache)
        if batch.pieces is not None:
            self._segments.update(batch.pieces.cuts)
        return hidden

    def _sample(self, hidden: torch.Tensor, pieces: list[DraftPiece], turn: int) -> torch.Tensor:
        """Return the next token of each piece, sampled as the served model would sample at its place."""
        logits = self._head(hidden)
        own = logits.shape[1]
        if own > self._vocabulary:
            logits = logits[:, : self._vocabulary].contiguous()
        elif own < self._vocabulary:
            padded = logits.new_full((len(logits), self._vocabulary), -torch.inf)
            padded[:, :own] = logits
            logits = padded
        positions = np.array([piece.stop + turn for piece in pieces], np.int32)
        sampled = self._sampling.sampler.sample(
            logits, self._batch([self._sampling.row(piece.row) for piece in pieces]),
            to_device(torch.from_numpy(positions), self._device),
        )  # fmt: skip
        # Of rows that are not finite the sampler may return any token.
        return sampled.ids.clamp_(0, min(own, self._vocabulary) - 1)

    def _batch(self, rows: list[SamplingRow]) -> list[SamplingBatch]:
        key = tuple(row.serial for row in rows)
        if (batch := self._batches.get(key)) is None:
            if len(self._batches) == KEPT_BATCHES:
                self._batches.clear()
            batch = self._batches[key] = self._sampling.sampler.batch([_plain(row) for row in rows])
        return batch

    def _drafting(self, pieces: list[DraftPiece], turn: int) -> HostBatch:
        """Return the step that reads draft `turn` of each piece, and writes the lane's second state."""
        lanes = np.array([piece.lane.number for piece in pieces], np.int32)
        first, second = lanes + 1, lanes + 1 + self.lanes.lanes
        positions = np.array([piece.stop + turn - 1 for piece in pieces], np.int32)
        pages = [_page(piece, int(at), self._page_size) for piece, at in zip(pieces, positions, strict=True)]
        rows = np.arange(len(pieces), dtype=np.int32)
        return HostBatch(
            positions=positions,
            token_sequence=rows,
            query_start=np.arange(len(pieces) + 1, dtype=np.int32),
            context_len=positions + 1,
            slot_in=first if turn == 1 else second,
            slot_out=second,
            decode_track=np.full(len(pieces), -1, np.int32),
            table_row=lanes,
            kv_row=np.array(pages, np.int32) * self._page_size + positions % self._page_size,
            chunk_start=NO_TOKENS, chunk_len=NO_TOKENS, chunk_sequence=NO_TOKENS, chunk_rank=NO_TOKENS,
            chunk_track=NO_TOKENS,
            logits_rows=rows,
        )  # fmt: skip


def _plain(row: SamplingRow) -> SamplingRow:
    """Return the row without log-probabilities and penalties: a draft changes no counts of the engine."""
    params = msgspec.structs.replace(
        row.params, logprobs=-1, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0
    )
    return replace(row, params=params, counts_row=-1, token_ids=NO_TOKENS)


def _page(piece: DraftPiece, position: int, page_size: int) -> int:
    """Return the page of a position; 0 without attention, where the number does not matter."""
    return int(piece.pages[position // page_size]) if len(piece.pages) else 0


def _index(values: list[int], device: torch.device) -> torch.Tensor:
    return to_device(torch.tensor(values, dtype=torch.int64), device)


def _reading(pieces: list[DraftPiece], chunk: int, page_size: int) -> HostBatch:
    """Return the batch that computes `pieces` and writes the first of each sequence's states.

    Pieces of one token come first.
    """
    lengths = np.array([len(piece.token_ids) for piece in pieces], np.int32)
    decodes = int((lengths == 1).sum())
    query_start = np.zeros(len(pieces) + 1, np.int32)
    np.cumsum(lengths, out=query_start[1:])
    lanes = np.array([piece.lane.number for piece in pieces], np.int32)
    positions = np.concatenate([np.arange(piece.start, piece.stop, dtype=np.int32) for piece in pieces])
    token_sequence = np.repeat(np.arange(len(pieces), dtype=np.int32), lengths)
    page = np.zeros(len(positions), np.int32)
    for piece, first, end in zip(pieces, query_start, query_start[1:], strict=False):
        if len(piece.pages):
            page[first:end] = piece.pages[positions[first:end] // page_size]
    chunks: list[tuple[int, int, int, int]] = []
    for number, piece in enumerate(pieces[decodes:], decodes):
        begin, offset = piece.start, int(query_start[number]) - piece.start
        for rank, stop in enumerate(chunk_ends(piece.start, piece.stop, chunk)):
            chunks.append((offset + begin, stop - begin, number, rank))
            begin = stop
    columns = np.array(chunks, np.int32).reshape(-1, 4).T.copy()
    return HostBatch(
        positions=positions,
        token_sequence=token_sequence,
        query_start=query_start,
        context_len=np.array([piece.stop for piece in pieces], np.int32),
        slot_in=np.where([piece.start == 0 for piece in pieces], -1, lanes + 1).astype(np.int32),
        slot_out=lanes + 1,
        decode_track=np.full(decodes, -1, np.int32),
        table_row=lanes,
        kv_row=page * page_size + positions % page_size,
        chunk_start=columns[0],
        chunk_len=columns[1],
        chunk_sequence=columns[2],
        chunk_rank=columns[3],
        chunk_track=np.full(columns.shape[1], -1, np.int32),
        logits_rows=query_start[1:] - 1,
    )
