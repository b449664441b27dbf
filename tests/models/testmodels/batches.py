"""A tiny driver of HybridModel for tests: fixed slots and pages per sequence, no scheduler, no tree.

Makes the batches the engine would make; every batch is checked before it runs.
"""

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch

from mamba_planner.model_config import ModelConfig
from mamba_server.model.cache_views import CacheViews
from mamba_server.model.forward_batch import ForwardBatch, HostBatch, IntArray
from mamba_server.model.layers.hybrid import HybridModel
from testmodels.no_sync import no_sync

CPU = torch.device("cpu")


def poisoned_views(
    config: ModelConfig,
    *,
    slabs: int,
    pages: int,
    page_size: int,
    dtype: torch.dtype,
    state_dtype: torch.dtype | None = None,
) -> CacheViews:
    """Return NaN-filled views, strided as in an arena: the layers of a slab or page are adjacent."""
    kind = state_dtype or (torch.float64 if dtype == torch.float64 else torch.float32)
    conv: list[torch.Tensor] = []
    ssm: list[torch.Tensor] = []
    kv: list[torch.Tensor] = []
    if (mamba := config.mamba) is not None:
        shape = (mamba.heads, mamba.head_dim, mamba.state_size)
        ssm = _interleaved(config.recurrent_layers, slabs, shape, kind)
        conv = _interleaved(config.recurrent_layers, slabs, (mamba.conv_kernel - 1, mamba.conv_dim), dtype)
    if (delta := config.gated_delta) is not None:
        shape = (delta.value_heads, delta.value_dim, delta.key_dim)
        ssm = _interleaved(config.recurrent_layers, slabs, shape, kind)
        conv = _interleaved(config.recurrent_layers, slabs, (delta.conv_kernel - 1, delta.conv_dim), dtype)
    if (short := config.short_conv) is not None:
        ssm = _interleaved(config.recurrent_layers, slabs, (0, 0, 0), kind)
        shape = (short.conv_kernel - 1, short.channels)
        conv = _interleaved(config.recurrent_layers, slabs, shape, dtype)
    if (attention := config.attention) is not None:
        block = (2, page_size, attention.kv_heads, attention.head_dim)
        kv = _interleaved(config.attention_layers, pages, block, dtype)
    return CacheViews(conv, ssm, kv)


def _interleaved(layers: int, rows: int, shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    size = int(np.prod(shape))
    arena = torch.full((rows, layers * (size + 8) + 24), float("nan"), dtype=dtype)
    return [
        arena[:, layer * (size + 8) : layer * (size + 8) + size].unflatten(1, shape)
        for layer in range(layers)
    ]


@dataclass
class Sequence:
    """One sequence of the driver: its text, where its state lives and what is computed."""

    tokens: list[int]
    slot: int
    pages: list[int]
    computed: int = 0
    resume_from: int = -1
    """Slot the next piece starts from instead of the live one (once)."""


@dataclass
class Run:
    """Part of a sequence in one step: `count` tokens, checkpoints {depth: slot}, `track` for a decode."""

    sequence: Sequence
    count: int
    checkpoints: dict[int, int] = field(default_factory=dict)
    track: int = -1
    decode: bool = False
    logits: str = "last"
    """last, all or none"""


@dataclass
class Driver:
    """Runs steps of one model on one cache."""

    model: HybridModel
    cache: CacheViews
    page_size: int = 16
    chunk_size: int = 32
    guard: bool = True

    def step(self, runs: list[Run]) -> torch.Tensor:
        """Advance the sequences; return the wanted rows' logits, in order of the runs (decodes first)."""
        runs = sorted(runs, key=lambda run: not run.decode)
        host, ids, table = self._host(runs)
        host.check(self.chunk_size, self.page_size, table)
        batch = ForwardBatch.from_host(
            host, token_ids=ids, page_table=torch.from_numpy(table), chunk_size=self.chunk_size,
            page_size=self.page_size, device=CPU,
        )  # fmt: skip
        if self.guard:
            with no_sync():
                logits = self.model.forward(batch, self.cache)
        else:
            logits = self.model.forward(batch, self.cache)
        for run in runs:
            run.sequence.computed += run.count
            run.sequence.resume_from = -1
        return logits

    def _host(self, runs: list[Run]) -> tuple[HostBatch, IntArray, IntArray]:
        """Return integers, token ids and table of pages; the rows of the table go the other way."""
        ids: list[int] = []
        positions: list[int] = []
        owners: list[int] = []
        wanted: list[int] = []
        chunks: list[tuple[int, int, int, int, int]] = []
        for index, run in enumerate(runs):
            done, base = run.sequence.computed, len(ids)
            end = done + run.count
            ids += run.sequence.tokens[done:end]
            positions += range(done, end)
            owners += [index] * run.count
            if run.logits != "none":
                wanted += range(base if run.logits == "all" else len(ids) - 1, len(ids))
            if not run.decode:
                cuts = {d for d in range(done + 1, end) if d % self.chunk_size == 0}
                edges = [done, *sorted(cuts | set(run.checkpoints) | {end})]
                chunks += [
                    (base + a - done, b - a, index, rank, run.checkpoints.get(b, -1))
                    for rank, (a, b) in enumerate(pairwise(edges))
                ]
        width = max(len(run.sequence.pages) for run in runs)
        table = [run.sequence.pages + [-1] * (width - len(run.sequence.pages)) for run in runs]
        page = np.array(
            [table[owner][p // self.page_size] for owner, p in zip(owners, positions, strict=True)]
        )
        columns = _ints(chunks).reshape(-1, 5).T
        sources = [
            run.sequence.resume_from
            if run.sequence.resume_from >= 0
            else (run.sequence.slot if run.sequence.computed else -1)
            for run in runs
        ]
        return (
            HostBatch(
                positions=_ints(positions),
                token_sequence=_ints(owners),
                query_start=_ints(np.cumsum([0, *(run.count for run in runs)])),
                context_len=_ints([run.sequence.computed + run.count for run in runs]),
                slot_in=_ints(sources),
                slot_out=_ints([run.sequence.slot for run in runs]),
                decode_track=_ints([run.track for run in runs if run.decode]),
                table_row=_ints(range(len(runs)))[::-1].copy(),
                kv_row=_ints(page * self.page_size + np.array(positions) % self.page_size),
                chunk_start=columns[0],
                chunk_len=columns[1],
                chunk_sequence=columns[2],
                chunk_rank=columns[3],
                chunk_track=columns[4],
                logits_rows=_ints(wanted),
            ),
            _ints(ids),
            _ints(table[::-1]),
        )


def logits_of(model: HybridModel, *, prompt: int, decoded: int) -> torch.Tensor:
    """Return the logits of a random prompt of so many tokens, and of more tokens that are decoded.

    The prompt with these tokens has at most 32.
    """
    tokens = torch.randint(0, 250, (prompt + decoded,), generator=torch.Generator().manual_seed(3)).tolist()
    cache = poisoned_views(model.config, slabs=3, pages=4, page_size=16, dtype=model.dtype)
    driver = Driver(model, cache, guard=False)
    sequence = Sequence(tokens, slot=1, pages=[1, 2])
    rows = [driver.step([Run(sequence, prompt, logits="all")])]
    rows += [driver.step([Run(sequence, 1, decode=True, logits="all")]) for _ in range(decoded)]
    return torch.cat(rows)


def _ints(values: object) -> IntArray:
    return np.asarray(values, dtype=np.int32)
