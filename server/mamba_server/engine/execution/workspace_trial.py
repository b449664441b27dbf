"""What the worst steps really take beside weights and arena: computed once, before the arena is made.

The planner's arithmetic has to hold for every kernel and is larger than what most of them take; where it is
too small, a step would fail while it serves. Steps of padding find out.
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
from mamba_server.model.layers.hybrid import HybridModel
from mamba_server.model.layout import CacheLayout
from mamba_server.model.trial_batch import TrialPiece, trial_batch
from mamba_settings.byte_size import binary_size

Measure = Callable[[Callable[[], object]], int]
"""Runs the work; the most bytes of the device that it took beyond what was taken before."""
SLABS = 2
"""Of the arena that the steps are computed with: one of padding, and one since there is always one."""


def measured_workspace(
    model: HybridModel,
    config: ModelConfig,
    made: MemoryPlan,
    dtype: str,
    limits: SchedulerLimits,
    device: torch.device,
    measure: Measure,
) -> int:
    """Bytes that the worst steps of an engine within `limits` take, its tables of rows and pages included.

    Raises `InsufficientMemory` where the device has no room for one.
    """
    layout = replace(CacheLayout.of(config, made, dtype), slabs=SLABS)
    views = DeviceArena(layout, device).views(config, made.state_dtype, DTYPES[dtype])
    persistent = PersistentBatch(limits.max_running, -(-made.max_model_len // made.page_size))

    def work() -> None:
        runner = ModelRunner(
            model, views, persistent,
            chunk=limits.chunk, page_size=made.page_size, vocab_size=config.vocab_size,
            eos_token_ids=config.eos_token_ids, device=device, sample=model.backend.operators.sample,
        )  # fmt: skip
        for host, scored in worst_steps(limits, persistent.rows):
            runner.try_out(host, scored=scored)

    try:
        return measure(work)
    except torch.OutOfMemoryError as error:
        left = made.budget_bytes - made.weights_bytes
        raise InsufficientMemory(
            f"a step of {limits.step_tokens} tokens needs more than the {binary_size(left)} that the weights "
            "leave: fewer chunked prefill tokens, a shorter model length, or a larger device",
            need=made.budget_bytes + 1,
            have=made.budget_bytes,
        ) from error


def worst_steps(limits: SchedulerLimits, spare_row: int) -> Iterator[tuple[HostBatch, bool]]:
    """Steps, and whether all their rows are scored as a prompt's are. One of them takes the most, whatever
    the model: a whole step of one prompt at the end of the longest context, all of it scored; as many prompts
    as may run; as many decodes of the longest context."""
    tokens, longest = min(limits.step_tokens, limits.max_model_len), limits.max_model_len
    step = partial(trial_batch, chunk=limits.chunk, spare_row=spare_row)
    yield step((), [TrialPiece(tokens, longest)], scored=True), True
    many = min(limits.max_running, limits.step_tokens)
    each = min(max(1, limits.step_tokens // many), longest)
    yield step((), [TrialPiece(each, each)] * many), False
    yield step([longest] * many, ()), False


def cuda_peak(device: torch.device) -> Measure:
    """By torch's allocator: what it takes from the device, the gaps between tensors included."""

    def measure(work: Callable[[], object]) -> int:
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        torch.cuda.synchronize(device)
        most = torch.cuda.max_memory_reserved(device)
        torch.cuda.empty_cache()
        return most - before

    return measure
