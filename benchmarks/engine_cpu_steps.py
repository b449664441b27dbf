"""Steps of a model without scheduler and HTTP, for the benchmark of the CPU kernels: one process per way.

Reads the name of a measurement a line (`decode 8`, `prefill 512`) and answers with JSON: seconds of processor
time of all threads, seconds that passed, and the share of each kind of layer where layers are called apart.
"""

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter

from mamba_api.choices import Quantization
from mamba_kernels.cpu.whole_steps.step_decoder import StepDecoder
from mamba_planner.families.registry import load_model_config
from mamba_planner.model_config import ModelConfig
from mamba_server.model.cache_views import CacheViews
from mamba_server.model.device_arena import DTYPES
from mamba_server.model.forward_batch import ForwardBatch, HostBatch, IntArray
from mamba_server.model.layers.hybrid import HybridModel
from mamba_server.model.layers.step_decoder import step_decoder

CPU = torch.device("cpu")
PAGE, CHUNK, CONTEXT = 16, 64, 128
"""CONTEXT: tokens before and with a decoded one."""
MOST = 32
"""Sequences at most, where nobody asks for more."""


class StepTimer:
    """A model and a cache of `most` sequences; the numbers in it do not matter, their places do."""

    def __init__(
        self, directory: Path, dtype: str, threads: int, quantization: Quantization, most: int = MOST
    ) -> None:
        torch.set_num_threads(threads)
        config = load_model_config(directory)
        self.model = HybridModel.load(
            config, directory, device=CPU, dtype=DTYPES[dtype], quantization=quantization
        )
        if self.model.backend.library is not None:
            self.model.backend.library.set_threads(threads)
        kinds, attention = config.layers, config.attention
        assert attention is not None
        self._most = most
        kind, pages = DTYPES[dtype], most * CONTEXT // PAGE + 1

        def zeros(*shape: int, dtype: torch.dtype = kind) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype)

        recurrent = range(config.recurrent_layers)
        window, state = _of_a_slot(config)
        page = (2, PAGE, attention.kv_heads, attention.head_dim)
        self.views = CacheViews(
            conv=[zeros(most + 1, *window) for _ in recurrent],
            ssm=[zeros(most + 1, *state, dtype=torch.float32) for _ in recurrent],
            kv=[zeros(pages, *page) for _ in range(kinds.count("attention"))],
        )
        self.decoder = self.decoder_of(self.views)
        """None where torch computes."""
        self.seconds: dict[str, float] = defaultdict(float)
        """By kind of layer."""
        self.model.blocks = [
            replace(block, mixer=self._timed(name, block.mixer))
            for name, block in zip(kinds, self.model.blocks, strict=True)
        ]

    def decoder_of(self, views: CacheViews) -> StepDecoder | None:
        """Build the call of whole decode steps on the cache `views`; None where torch computes."""
        return step_decoder(
            self.model,
            views,
            page_table=torch.from_numpy(_pages(self._most)),
            last_token=torch.arange(self._most, dtype=torch.int32) + 5,
            most_rows=self._most,
        )

    def _timed(self, name: str, mixer: Any) -> Any:
        """Put a clock around each call of the mixer and keep its class, by which the model recognises it."""
        kind, seconds = type(mixer), self.seconds

        class Timed(kind):  # type: ignore[valid-type,misc]
            def __call__(self, *arguments: Any) -> Any:
                begin = time.perf_counter()
                out = super().__call__(*arguments)
                seconds[name] += time.perf_counter() - begin
                return out

        mixer.__class__ = Timed
        return mixer

    def measure(self, kind: str, count: int) -> dict[str, Any]:
        """Measure one step, after one that warms up."""
        batch = decode(count) if kind == "decode" else prefill(count)
        self._forward(batch)
        self.seconds.clear()
        processor, wall = time.process_time(), time.perf_counter()
        self._forward(batch)
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        return {
            "processor": processor,
            "wall": wall,
            "shares": {name: round(part / wall, 3) for name, part in self.seconds.items()},
        }

    def _forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Run the model the way the engine's runner does."""
        if self.decoder is None or batch.tokens != batch.decodes:
            return self.model.forward(batch, self.views)
        return self.model.logits(self.decoder(batch.host))


def _of_a_slot(config: ModelConfig) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of a recurrent layer's window and state."""
    if (delta := config.gated_delta) is not None:
        return (delta.conv_kernel - 1, delta.conv_dim), (delta.value_heads, delta.value_dim, delta.key_dim)
    mamba = config.mamba
    assert mamba is not None
    return (mamba.conv_kernel - 1, mamba.conv_dim), (mamba.heads, mamba.head_dim, mamba.state_size)


def _pages(rows: int) -> IntArray:
    """Return [rows, pages] of sequences of CONTEXT tokens."""
    return np.arange(1, 1 + rows * CONTEXT // PAGE, dtype=np.int32).reshape(rows, -1)


def decode(rows: int) -> ForwardBatch:
    """Return a batch of `rows` sequences with CONTEXT tokens each."""
    pages = _pages(rows)
    slots = np.arange(1, rows + 1)
    return _batch(
        decodes=rows, lengths=[1] * rows, pages=pages, slot_in=slots, slot_out=slots, last=slots - 1, chunks=0
    )


def prefill(rows: int) -> ForwardBatch:
    """Return a batch with the first `rows` tokens of one sequence."""
    pages = np.arange(1, 1 + -(-rows // PAGE), dtype=np.int32)[None]
    return _batch(
        decodes=0, lengths=[rows], pages=pages, slot_in=[-1], slot_out=[1], last=[rows - 1],
        chunks=-(-rows // CHUNK),
    )  # fmt: skip


def _batch(
    *, decodes: int, lengths: list[int], pages: IntArray, slot_in: Any, slot_out: Any, last: Any, chunks: int
) -> ForwardBatch:
    def ints(values: Any) -> IntArray:
        return np.array(values, dtype=np.int32)

    start = np.cumsum([0, *lengths])
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    positions = np.full(decodes, CONTEXT - 1) if decodes else np.arange(lengths[0])
    firsts = np.arange(chunks) * CHUNK
    host = HostBatch(
        positions=ints(positions),
        token_sequence=ints(sequence),
        query_start=ints(start),
        context_len=ints([CONTEXT] * decodes or lengths),
        slot_in=ints(slot_in),
        slot_out=ints(slot_out),
        decode_track=ints([-1] * decodes),
        table_row=ints(np.arange(len(pages))),
        kv_row=ints(pages[sequence, positions // PAGE] * PAGE + positions % PAGE),
        chunk_start=ints(firsts),
        chunk_len=ints(np.minimum(CHUNK, start[-1] - firsts)),
        chunk_sequence=ints(np.zeros(chunks)),
        chunk_rank=ints(np.arange(chunks)),
        chunk_track=ints([-1] * chunks),
        logits_rows=ints(last),
    )
    tokens = ints(np.arange(start[-1]) % 200 + 5)
    host.check(CHUNK, PAGE, pages)
    table = torch.from_numpy(pages)
    return ForwardBatch.from_host(
        host, token_ids=tokens, page_table=table, chunk_size=CHUNK, page_size=PAGE, device=CPU
    )


def _answer(measure: Callable[[str, int], dict[str, Any]], line: str) -> str:
    kind, count = line.split()
    return json.dumps(measure(kind, int(count)))


def main() -> None:
    directory, dtype, threads, quantization = sys.argv[1:]
    steps = StepTimer(
        Path(directory), dtype, int(threads), TypeAdapter(Quantization).validate_python(quantization)
    )
    print(steps.model.backend.name, flush=True)
    for line in sys.stdin:
        print(_answer(steps.measure, line), flush=True)


if __name__ == "__main__":
    main()
