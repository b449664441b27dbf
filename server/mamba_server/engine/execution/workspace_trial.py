"""Measurement of the memory that the worst steps take besides weights and arena, before the arena exists.

The planner's arithmetic has to hold for every kernel and is larger than most of them need; where it is too
small, a step would fail while the engine serves. Steps of padding measure the true value.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch

from mamba_planner.errors import InsufficientMemory
from mamba_planner.memory_plan import MemoryPlan
from mamba_planner.model_config import ModelConfig
from mamba_server.cache import PersistentBatch
from mamba_server.engine.execution.runner import ModelRunner
from mamba_server.engine.scheduling.limits import SchedulerLimits
from mamba_server.model.device_arena import DTYPES, DeviceArena
from mamba_server.model.forward_batch import HostBatch
from mamba_server.model.hidden_rows import HiddenMemory
from mamba_server.model.layers.hybrid import HybridModel
from mamba_server.model.layout import CacheLayout
from mamba_server.model.trial_batch import TrialPiece, trial_batch
from mamba_settings.byte_size import binary_size

Measure = Callable[[Callable[[], object]], int]
"""Function that runs the work and returns the most bytes of the device that it took in addition."""
SLABS = 2
"""Slabs of the arena with which the steps are computed: one of padding, and the one that an arena always
has."""


def measured_workspace(
    model: HybridModel,
    config: ModelConfig,
    plan: MemoryPlan,
    dtype: str,
    limits: SchedulerLimits,
    device: torch.device,
    measure: Measure,
) -> int:
    """Return the bytes that the worst steps within `limits` take, including tables of rows and pages.

    `dtype` is the type of activations and pages. `measure` runs work and returns the bytes that it took.
    Raises `InsufficientMemory` if the device has no room for one of the steps.
    """
    layout = replace(CacheLayout.of(config, plan, dtype), slabs=SLABS)
    views = DeviceArena(layout, device).views(config, plan.state_dtype, DTYPES[dtype])
    persistent = PersistentBatch(limits.max_running, -(-plan.max_model_len // plan.page_size))
    if config.draft_head:
        # The plan counts this memory with that of drafts.
        hidden = HiddenMemory.allocate(persistent.rows, 0, 0, config.hidden_size, DTYPES[dtype], device)
        views = replace(views, hidden=hidden)

    def work() -> None:
        runner = ModelRunner(
            model, views, persistent,
            chunk=limits.chunk, page_size=plan.page_size, vocab_size=config.vocab_size,
            eos_token_ids=config.eos_token_ids, device=device, sample=model.backend.operators.sample,
        )  # fmt: skip
        for host, scored in worst_steps(limits, persistent.rows):
            runner.try_out(host, scored=scored)

    try:
        return measure(work)
    except torch.OutOfMemoryError as error:
        remaining = plan.bytes_beside_models
        raise InsufficientMemory(
            f"a step of {limits.step_tokens} tokens needs more than the {binary_size(remaining)} that the "
            "weights leave: set fewer chunked prefill tokens or a shorter model length, or use a device with "
            "more memory",
            need=plan.budget_bytes + 1,
            have=plan.budget_bytes,
        ) from error


def worst_steps(limits: SchedulerLimits, spare_row: int) -> Iterator[tuple[HostBatch, bool]]:
    """Yield the worst steps, each with whether all its rows are scored as a prompt's are.

    One of them takes the most memory, whatever the model: a whole step of one prompt at the end of the
    longest context, all of it scored; as many prompts as may run; as many decodes of the longest context.
    """
    tokens, longest = min(limits.step_tokens, limits.max_model_len), limits.max_model_len
    step = partial(trial_batch, chunk=limits.chunk, spare_row=spare_row)
    yield step((), [TrialPiece(tokens, longest)], scored=True), True
    sequences = min(limits.max_running, limits.step_tokens)
    length = min(max(1, limits.step_tokens // sequences), longest)
    yield step((), [TrialPiece(length, length)] * sequences), False
    yield step([longest] * sequences, ()), False


def cuda_peak(device: torch.device) -> Measure:
    """Return a measure by torch's allocator: memory taken from the device, gaps between tensors included."""

    def measure(work: Callable[[], object]) -> int:
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        reserved = torch.cuda.memory_reserved(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        torch.cuda.synchronize(device)
        peak = torch.cuda.max_memory_reserved(device)
        torch.cuda.empty_cache()
        return peak - reserved

    return measure
