"""Steps over an arena as the engine has it: slabs of the whole model, slots and pages in any order."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch

from mamba_kernels.stochastic_rounding import noise_words
from mamba_planner.arithmetic import (
    DTYPE_BYTES,
    kv_bytes_per_token,
    layer_state,
    slab_bytes,
    state_bytes,
)
from mamba_planner.model_config import ModelConfig
from mamba_server.model.cache_views import CacheViews
from mamba_server.model.device_arena import DTYPES, DeviceArena, ring_memory
from mamba_server.model.forward_batch import ForwardBatch, HostBatch, IntArray
from mamba_server.model.layout import CacheLayout

PAGE = 16
CHUNK = 64
FILLED_TOGETHER = 64


@dataclass(frozen=True, slots=True)
class Piece:
    """Some tokens of a prompt."""

    tokens: int
    done: int = 0
    """Tokens in front of them, whose state is resumed."""
    track_every: int = 0
    """Tokens between checkpoints; 0 = there are none."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """The decodes and prompt pieces of a step."""

    decodes: tuple[int, ...] = ()
    """Context of each sequence that decodes, the new token included."""
    pieces: tuple[Piece, ...] = ()
    tracked: int = 0
    """Every so many-th decode leaves a checkpoint; 0 = none does, 1 = all do."""
    ring: int = 0
    """Tokens after which a state is written, at each of which are as many decodes; 0 = all are written."""

    @property
    def tokens(self) -> int:
        return len(self.decodes) + sum(piece.tokens for piece in self.pieces)

    @property
    def slots(self) -> int:
        """Slots that the step names."""
        tracked = len(self.decodes[:: self.tracked]) if self.tracked else 0
        resumed = sum(piece.done > 0 for piece in self.pieces)
        checkpoints = sum(len(_checkpoints(piece)) for piece in self.pieces)
        return len(self.decodes) + tracked + len(self.pieces) + resumed + checkpoints

    @property
    def pages(self) -> int:
        """Pages that the step's contexts take."""
        return sum(-(-context // PAGE) for context in self._contexts)

    @property
    def _contexts(self) -> list[int]:
        return [*self.decodes, *(piece.done + piece.tokens for piece in self.pieces)]


class StepArena:
    """An arena for steps of the given shapes. Memory that no step names holds NaN."""

    def __init__(
        self,
        whole: ModelConfig,
        shapes: Sequence[StepShape],
        *,
        dtype: str,
        state_dtype: str,
        device: torch.device,
        seed: int = 0,
        spare_slabs: int = 0,
    ) -> None:
        """Prepare the inputs of a step.

        `whole`: model that owns the slabs, of which a shortened model uses the first layers; `spare_slabs`:
        unused slabs between the used ones, so that places lie far apart.
        """
        layer = layer_state(whole)
        page = PAGE * kv_bytes_per_token(whole, dtype)
        slab = slab_bytes(state_bytes(whole, state_dtype, dtype).total, page)
        slots = max(shape.slots for shape in shapes)
        pages = max(shape.pages for shape in shapes)
        per_slab = slab // page if page else 0
        of_pages = -(-pages // per_slab) if page else 0
        self.layout = CacheLayout(
            recurrent_layers=whole.recurrent_layers,
            ssm_bytes=layer.ssm * DTYPE_BYTES[state_dtype],
            conv_bytes=layer.conv * DTYPE_BYTES[dtype],
            attention_layers=whole.attention_layers,
            page_layer_bytes=page // max(1, whole.attention_layers),
            page_size=PAGE,
            slab_bytes=slab,
            slabs=1 + slots + of_pages + spare_slabs,
        )
        self.device = device
        self._rounds = state_dtype == "float16"
        self._rng = np.random.default_rng(seed)
        memory = DeviceArena(self.layout, device)
        memory.memory.view(DTYPES[dtype]).fill_(torch.nan)
        self.views: CacheViews = memory.views(whole, state_dtype, DTYPES[dtype])
        slabs = 1 + self._rng.permutation(self.layout.slabs - 1)
        self._slots = slabs[:slots]
        numbers = slabs[slots : slots + of_pages, None] * per_slab + np.arange(per_slab)
        self._pages = self._rng.permutation(numbers.reshape(-1))
        self._fill(seed)
        self._rings = self._filled_rings(whole, shapes, DTYPES[dtype])

    def views_of(self, shape: StepShape) -> CacheViews:
        """Return the views with which a step of the shape is computed."""
        return replace(self.views, rings=self._rings) if shape.ring else self.views

    def _filled_rings(
        self, model: ModelConfig, shapes: Sequence[StepShape], dtype: torch.dtype
    ) -> list[torch.Tensor]:
        """Allocate rings for the steps that have some, with inputs of a usual size."""
        lanes = max((len(shape.decodes) for shape in shapes if shape.ring), default=0)
        tokens = max((shape.ring for shape in shapes), default=0)
        if not lanes:
            return []
        rings = ring_memory(model, lanes=lanes, tokens=tokens, dtype=dtype, device=self.device)
        return [ring.normal_() for ring in rings]

    def _fill(self, seed: int) -> None:
        """Put states and keys of a usual size to every place that steps may name."""
        generator = torch.Generator(self.device).manual_seed(seed)
        slots, pages = (torch.from_numpy(places).to(self.device) for places in (self._slots, self._pages))
        for views, places in ((self.views.ssm, slots), (self.views.conv, slots), (self.views.kv, pages)):
            for view in views:
                assert isinstance(view, torch.Tensor), "pages are of the activations' type here"
                # Some at a time: all at once would take as much memory again.
                for some in places.split(FILLED_TOGETHER):
                    shape = (len(some), *view.shape[1:])
                    values = torch.randn(shape, generator=generator, device=self.device).mul_(0.5)
                    view[some] = values.to(view.dtype)

    def host_batch(self, shape: StepShape) -> tuple[HostBatch, IntArray]:
        """Return the integers of a step, and the table of pages [S + 1, W], whose last row is nobody's."""
        slots = iter(self._slots.tolist())
        own = [Piece(1, context - 1) for context in shape.decodes] + list(shape.pieces)
        D, S = len(shape.decodes), len(own)
        lengths = np.array([piece.tokens for piece in own], np.int32)
        contexts = np.array([piece.done + piece.tokens for piece in own], np.int32)
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        positions = np.concatenate([np.arange(piece.done, piece.done + piece.tokens) for piece in own])
        sequence = np.repeat(np.arange(S, dtype=np.int32), lengths)
        slot_out = np.array([next(slots) for _ in own], np.int32)
        resumed = [next(slots) if piece.done else -1 for piece in shape.pieces]
        slot_in = np.array([*slot_out[:D], *resumed], np.int32)
        tracks = [shape.tracked > 0 and row % shape.tracked == 0 for row in range(D)]
        ring = _ring(D, shape.ring) if shape.ring else None
        if ring is not None:
            tracks = [tracked and writes > 0 for tracked, writes in zip(tracks, ring[2], strict=True)]
        decode_track = np.array([next(slots) if tracked else -1 for tracked in tracks], np.int32)
        table = self._page_table(contexts)
        chunks = [
            (int(starts[number]) + first - piece.done, end - first, number, rank, end)
            for number, piece in enumerate(own[D:], D)
            for rank, (first, end) in enumerate(_cuts(piece))
        ]
        columns = np.array(chunks, np.int32).reshape(-1, 5)
        checkpoints = {
            (number, depth) for number, piece in enumerate(own[D:], D) for depth in _checkpoints(piece)
        }
        track = [next(slots) if (row[2], row[4]) in checkpoints else -1 for row in columns.tolist()]
        rows = table[sequence, positions // PAGE] * PAGE + positions % PAGE
        noise = noise_words(sequence, (positions + 1).astype(np.int32)) if self._rounds else None
        batch = HostBatch(
            positions=positions.astype(np.int32),
            token_sequence=sequence,
            query_start=starts,
            context_len=contexts,
            slot_in=slot_in,
            slot_out=slot_out,
            decode_track=decode_track,
            table_row=np.arange(S, dtype=np.int32),
            kv_row=rows.astype(np.int32),
            chunk_start=columns[:, 0].copy(),
            chunk_len=columns[:, 1].copy(),
            chunk_sequence=columns[:, 2].copy(),
            chunk_rank=columns[:, 3].copy(),
            chunk_track=np.array(track, np.int32),
            logits_rows=starts[1:] - 1,
            state_noise=np.empty(0, np.int32) if noise is None else noise,
            ring=ring,
        )
        return batch, table

    def batch(self, shape: StepShape, vocab_size: int) -> ForwardBatch:
        """Return the step on the device, with random tokens."""
        host, table = self.host_batch(shape)
        ids = self._rng.integers(0, vocab_size, shape.tokens).astype(np.int32)
        return ForwardBatch.from_host(
            host,
            token_ids=ids,
            page_table=torch.from_numpy(table).to(self.device),
            chunk_size=CHUNK,
            page_size=PAGE,
            device=self.device,
        )

    def _page_table(self, contexts: IntArray) -> IntArray:
        counts = -(-contexts // PAGE)
        table = np.zeros((len(contexts) + 1, int(counts.max(initial=1))), np.int32)
        if len(self._pages):
            ends = np.cumsum(counts)
            for row, (end, count) in enumerate(zip(ends.tolist(), counts.tolist(), strict=True)):
                table[row, :count] = self._pages[end - count : end]
        return table


def _checkpoints(piece: Piece) -> list[int]:
    """Return the depths at which the piece leaves checkpoints."""
    if not piece.track_every:
        return []
    first = (piece.done // piece.track_every + 1) * piece.track_every
    return list(range(first, piece.done + piece.tokens + 1, piece.track_every))


def _cuts(piece: Piece) -> list[tuple[int, int]]:
    """Return (first, end) of the chunks: they end at multiples of the chunk, at checkpoints, at the end."""
    end = piece.done + piece.tokens
    ends = {*range((piece.done // CHUNK + 1) * CHUNK, end, CHUNK), *_checkpoints(piece), end}
    bounds = [piece.done, *sorted(ends)]
    return list(pairwise(bounds))


def _ring(rows: int, tokens: int) -> IntArray:
    """Return `HostBatch.ring` of rows that began at any time: as many are at each place of their ring."""
    waiting = np.arange(rows, dtype=np.int32) % tokens
    return np.array([np.arange(rows), waiting, waiting == tokens - 1], np.int32)
