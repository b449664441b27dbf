"""Bytes that a step copies to its device, counted where every copy passes, on a device without memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mamba_kernels.dispatch.backend import TORCH
from mamba_server.cache.persistent_batch import PersistentBatch
from mamba_server.engine.execution.runner import ModelRunner
from mamba_server.engine.execution.sampling_batch import SamplingRow
from mamba_server.engine.sequences.schedule import Schedule
from mamba_server.engine.sequences.sequence import Sequence
from mamba_server.model.cache_views import CacheViews
from mamba_server.model.forward_batch import ForwardBatch
from mamba_server.model.step_plans import StepPlans
from mamba_server.wire import SamplingParams

ROWS, PAGE, LONGEST = 256, 16, 131_072
META = torch.device("meta")
LIMIT = 64 << 10


class Sent(TorchDispatchMode):
    """Bytes that go from the host to the device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = self.copies = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = str(func)
        target, source = args[:2] if name.startswith("aten.copy_") else (out, args[0] if args else None)
        copies = name.startswith(("aten.copy_", "aten._to_copy", "aten.to."))
        if copies and source.device.type == "cpu" and target.device.type == "meta":
            self.bytes += source.nbytes
            self.copies += 1
        return out


class Plans:
    """Makes the plans of a model with kernels for attention, and says nothing."""

    backend = TORCH
    adapters = None

    def hidden(self, batch: ForwardBatch, cache: CacheViews) -> torch.Tensor:
        StepPlans.build(batch, recurrent=True, attention=True, gathered=False)
        return torch.zeros(len(batch.logits_rows), 8, device=META)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden.clone()


def decodes(contexts: list[int]) -> tuple[PersistentBatch, ModelRunner, Schedule]:
    batch = PersistentBatch(ROWS, LONGEST // PAGE)
    runner = ModelRunner(
        Plans(), CacheViews([], [], []), batch, chunk=64, page_size=PAGE, vocab_size=8,  # type: ignore[arg-type]
        eos_token_ids=(), device=META,
    )  # fmt: skip
    page, greedy = 1, SamplingParams(max_tokens=1, temperature=0.0)
    for slot, context in enumerate(contexts, 1):
        row, count = batch.add(slot, context), -(-context // PAGE)
        batch.append_pages(row, np.arange(page, page + count, dtype=np.int32))
        runner._sampling[row] = SamplingRow(greedy, 0, 1, row, -1, np.empty(0, np.int32), ())
        page += count
    rows = np.arange(len(contexts), dtype=np.int32)
    unguided = Sequence("r", 0, np.zeros(1, np.int32), greedy, order=0)
    tracks = np.where(rows % 16 == 0, 900, 0).astype(np.int32)
    return batch, runner, Schedule(1, rows, tracks, [unguided] * len(rows), [])


def sent(runner: ModelRunner, schedule: Schedule) -> Sent:
    work = runner.prepare(schedule)
    with Sent() as counted:
        work()
    return counted


@pytest.mark.parametrize("longest", [500, LONGEST - 8])
def test_a_decode_step_of_256_rows_sends_at_most_64_kib_whatever_their_contexts(longest: int) -> None:
    contexts = [*np.random.default_rng(0).integers(500, 8000, ROWS - 1).tolist(), longest]
    batch, runner, schedule = decodes(contexts)
    first = sent(runner, schedule)
    assert first.bytes > 4 * sum(contexts) // PAGE, "the first step of a sequence sends its pages"
    for row in range(0, ROWS, 2):
        batch.depth[row] += PAGE
        if batch.page_count[row] < LONGEST // PAGE:
            batch.append_pages(row, np.array([9], np.int32))
    step = sent(runner, schedule)
    assert 4 * ROWS < step.bytes <= LIMIT
