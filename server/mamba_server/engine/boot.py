"""Boot of the engine: resolve, read, plan, load, allocate. Every failure has a name and an exit code.

Called once by the engine process. The engine is built as the plan says: by the same planner as in the command
line and the operator, with the device's true memory and the files' true bytes.
"""

import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from mamba_kernels.device_errors import ends_the_device
from mamba_kernels.dispatch.backend import Backend, backend_for, compiles_first
from mamba_planner.arithmetic import attention_ratio
from mamba_planner.constraints import MOST_STEP_TOKENS
from mamba_planner.engine_plan import plan_engine
from mamba_planner.families.registry import load_model_config, why_not_served
from mamba_planner.memory import MOST_RUNNING
from mamba_planner.memory_plan import MemoryPlan
from mamba_planner.model_config import ModelConfig
from mamba_planner.strategy import reservation
from mamba_planner.workspace import CHUNK, DRAFT_ROWS, RING_LANES
from mamba_server.cache import (
    AllocationFault,
    CacheSettings,
    ManagedStateCache,
    PersistentBatch,
    Quarantined,
    Tokens,
    build_state_cache,
)
from mamba_server.engine.adapter_calls import held_adapters, load_at_start, make_bank
from mamba_server.engine.audits.distance import Precision
from mamba_server.engine.audits.resumed_answers import ResumedAnswers
from mamba_server.engine.device_metrics import Counters, Gauges, device_counters, device_gauges
from mamba_server.engine.draft_model import LoadedDraftModel, device_kind, draft_model_source
from mamba_server.engine.errors import DeviceLost, NoDevice
from mamba_server.engine.execution.draft_runner import DraftRunner
from mamba_server.engine.execution.runner import ModelRunner
from mamba_server.engine.execution.step_graphs import StepGraphs
from mamba_server.engine.execution.workspace_trial import Measure, cuda_peak, measured_workspace
from mamba_server.engine.fingerprint import fingerprint_of
from mamba_server.engine.model_to_load import (
    device_memory,
    type_of_weights,
    with_affordable_head,
    with_own_head,
)
from mamba_server.engine.scheduling.draft_rows import room_for_drafts
from mamba_server.engine.scheduling.limits import SchedulerLimits
from mamba_server.engine.scheduling.scheduler import Scheduler
from mamba_server.engine.scheduling.start_budget import StartBudget
from mamba_server.engine.speculation.auto_drafts import AutoDrafts
from mamba_server.engine.speculation.head_drafts import HeadDrafts, HeadRequest
from mamba_server.engine.speculation.ngram_drafts import NgramDrafts
from mamba_server.engine.state_replay import (
    ReplayRule,
    replay_rule,
    ring_rows,
    rings_of,
    with_rule,
)
from mamba_server.engine.stepping.answer_audits import AnswerAudits, NoAudits
from mamba_server.engine.stepping.core import EngineCore
from mamba_server.engine.stepping.forward_stream import ForwardStream, InlineStream, ThreadStream
from mamba_server.engine.stepping.speculation import DraftSource, DraftSwitch, Speculation, work_clock
from mamba_server.engine.stepping.step_pace import STEP_TIME, StepPace
from mamba_server.grammar_matcher import mask_words
from mamba_server.model.adapters.adapter_bank import AdapterBank
from mamba_server.model.cache_views import CacheViews
from mamba_server.model.checkpoint.errors import UnsupportedModel
from mamba_server.model.checkpoint.source import resolve
from mamba_server.model.checkpoint.tensor_source import TensorSource
from mamba_server.model.checkpoint.weights import Weights
from mamba_server.model.device_arena import DTYPES, DeviceArena, replay_memory
from mamba_server.model.hidden_rows import HiddenMemory
from mamba_server.model.layers.hybrid import HybridModel
from mamba_server.model.layout import CacheLayout
from mamba_server.wire import LoadedAdapter
from mamba_settings.engine_settings import EngineSettings
from mamba_transfer import StateLayout

Report = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class BootOverrides:
    """Values that only tests of correctness change, and no setting does."""

    chunk: int | None = None
    """Prefill chunk; None = the chunk of the kind of device."""
    fail: AllocationFault | None = None
    stream: Callable[[ForwardStream], ForwardStream] | None = None
    """Wrapper of the forward stream."""
    graphs: StepGraphs | None = None
    """Capture of decode steps, in place of the device's own."""
    measure: Measure | None = None
    """Function that measures the memory of a step, for devices that cannot report their use of memory."""
    weights: TensorSource | None = None
    """Source of the model's tensors in place of the directory's files."""
    drafts: DraftSource | None = None
    """Source of drafts that replaces the source of the settings; the settings switch speculation on."""
    warm_up: bool = False
    """Whether to prepare steps on a CPU, too."""
    bound_starts: bool = True
    """Whether a measured time bounds the starts of a step; if not, the schedule depends on no clock."""


NO_OVERRIDES = BootOverrides()
SEED_BITS = 31
"""Bits of a seed that an engine draws for itself."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A booted engine: the core, its inputs, and the stream to close at its end."""

    core: EngineCore
    plan: MemoryPlan
    model: ModelConfig
    directory: Path
    stream: ForwardStream
    kernels: Backend
    """Kernels in use."""
    device_counters: Counters
    device_gauges: Gauges
    memory: torch.Tensor
    """The arena's bytes."""
    state_layout: StateLayout
    """Layout of states and pages in the arena, in terms that two engines can compare."""
    decode_steps: dict[str, int]
    """Value of `DecodeSteps.counts` after the start."""
    bank: AdapterBank | None
    """Places for adapters; None = there are none."""
    adapters: tuple[LoadedAdapter, ...]
    """Adapters that the settings name."""


def boot(settings: EngineSettings, report: Report, overrides: BootOverrides = NO_OVERRIDES) -> Engine:
    """Build the engine.

    Raises ModelError, ModelConfigError, BudgetError, NoDevice, DeviceLost, UnknownKernels: each has an
    `exit_code`, and a message that says what to do.
    """
    directory = resolve(settings.model, report)
    config = load_model_config(directory)
    if (why := why_not_served(config)) is not None:
        # Checked first, so that nobody buys memory for a model that cannot be served.
        raise UnsupportedModel(why)
    device = pick_device(settings.device)
    settings = settings.for_device(device_kind(device))
    draft_model = draft_model_source(settings, directory, device, report)
    config = replace(config, draft_model=None if draft_model is None else draft_model.facts)
    config = with_own_head(config, settings, directory, replaced=overrides.weights is not None)
    dtype = type_of_weights(config, settings)
    rule = replay_rule(settings, config, device)
    settings = with_rule(settings, rule)
    memory_of_device = device_memory(settings, device)
    config, weights = with_affordable_head(config, directory, dtype, settings, device, memory_of_device)
    plan = plan_engine(config, settings, memory_of_device, weights)
    if settings.quantization != "fp8":
        # No C++ kernel multiplies FP8.
        _compile_kernels(device, DTYPES[dtype], report)
    model = HybridModel(
        config,
        overrides.weights or Weights(directory, report, heads=config.draft_head),
        device=device,
        dtype=DTYPES[dtype],
        batch_invariant=settings.batch_invariant,
        quantization=settings.quantization,
        adapters=make_bank(settings, device, DTYPES[dtype]),
    )
    second = None if draft_model is None else draft_model.load(config, settings, device, report)
    adapters = load_at_start(model.adapters, settings.lora_paths, report)
    # A kernel that fails before the engine is ready is left out.
    try_out = model.backend.operators.try_out
    measure = cuda_peak(device) if device.type == "cuda" else overrides.measure
    if measure is not None and settings.arena_bytes is None:
        report("measuring the workspace", 0, 1)
        limits = _limits(settings, plan, device, overrides)
        workspace = try_out(lambda: measured_workspace(model, config, plan, dtype, limits, device, measure))
        plan = plan_engine(config, settings, memory_of_device, weights, workspace)
        report("measuring the workspace", 1, 1)
    report("allocating the arena", 0, plan.arena_bytes)
    layout = CacheLayout.of(config, plan, dtype)
    memory = DeviceArena(layout, device)
    report("allocating the arena", plan.arena_bytes, plan.arena_bytes)
    limits = _limits(settings, plan, device, overrides)
    fingerprint = fingerprint_of(directory, dtype, plan.state_dtype, settings.quantization)
    drafts = _drafts(settings, config, limits, overrides, second)
    lanes = _lanes(limits, drafts, rule)
    batch = PersistentBatch(limits.max_running, -(-plan.max_model_len // plan.page_size), lanes)
    cache = _cache(settings, plan, layout, batch, fingerprint, overrides.fail)
    stream = make_stream(device, overlap=plan.overlap)
    if overrides.stream is not None:
        stream = overrides.stream(stream)
    views = memory.views(config, plan.state_dtype, DTYPES[dtype])
    views = _with_draft_memory(views, drafts, config, batch, plan.state_dtype, DTYPES[dtype], device)
    views = replace(views, rings=rings_of(rule, config, lanes, DTYPES[dtype], device))
    runner = ModelRunner(
        model,
        views,
        batch,
        chunk=limits.chunk,
        page_size=plan.page_size,
        vocab_size=config.vocab_size,
        eos_token_ids=config.eos_token_ids,
        device=device,
        sample=model.backend.operators.sample,
        graphs=_graphs(settings, stream, plan, overrides),
        longest_piece=min(limits.step_tokens, limits.max_model_len),
        step_tokens=limits.step_tokens,
    )
    _connect(drafts, cache, runner, stream)
    follower = _follower(second, drafts, cache, runner, stream, config)
    core = EngineCore(
        Scheduler(
            cache,
            limits,
            _start_budget(overrides),
            drafts,
            mask_words(config.vocab_size),
            ring_rows(rule, batch),
        ),
        cache,
        stream,
        runner,
        overlap=plan.overlap,
        eos_token_ids=frozenset(config.eos_token_ids),
        seed=secrets.randbits(SEED_BITS) if settings.seed is None else settings.seed,
        pace=_pace(settings, limits, device),
        attention_ratio=attention_ratio(config),
        pin_share=settings.pin_share if settings.prefix_caching else 0.0,
        speculation=None if drafts is None else _speculation(drafts, runner, stream),
    )
    if follower is not None:
        core.scheduler.on_leave.append(follower.lanes.release)
    core.adapters = held_adapters(model.adapters)
    core.audits = _audits(settings, config, plan, dtype, limits, device, core, stream, runner)
    if device.type == "cuda" or overrides.warm_up:
        _prepare(stream, lambda: try_out(lambda: runner.warm_up(report)))
        _warm_up_follower(follower, stream, try_out)
    counters = device_counters(device, model.backend)
    gauges, steps = device_gauges(runner, model.backend), runner.decode_step_counts
    state_layout = StateLayout.of(
        config, fingerprint=fingerprint, state_dtype=plan.state_dtype, dtype=dtype,
        page_size=plan.page_size, kv_cache_dtype=plan.kv_cache_dtype,
    )  # fmt: skip
    assert state_layout.slab_bytes == layout.slab_bytes
    return Engine(
        core,
        plan,
        config,
        directory,
        stream,
        model.backend,
        counters,
        gauges,
        memory.memory,
        state_layout,
        steps,
        model.adapters,
        adapters,
    )


def _compile_kernels(device: torch.device, dtype: torch.dtype, report: Report) -> None:
    """Compile kernels that an earlier start has not compiled yet."""
    if compiles_first(device, dtype):
        report("compiling the kernels, this once", 0, 1)
        backend_for(device, dtype)
        report("compiling the kernels, this once", 1, 1)


def _with_draft_memory(
    views: CacheViews,
    drafts: DraftSource | None,
    config: ModelConfig,
    batch: PersistentBatch,
    state_dtype: str,
    dtype: torch.dtype,
    device: torch.device,
) -> CacheViews:
    """Return `views` with memory for drafts, if there are any, and for hidden states that a head reads."""
    if drafts is None:
        return views
    lanes, most = batch.lanes, drafts.most
    replay = replay_memory(
        config, lanes=lanes, most=most, state_dtype=state_dtype, dtype=dtype, device=device
    )
    views = replace(views, replay=replay)
    if not config.draft_head:
        return views
    hidden = HiddenMemory.allocate(batch.rows, lanes, most, config.hidden_size, dtype, device)
    return replace(views, hidden=hidden)


def _drafts(
    settings: EngineSettings,
    config: ModelConfig,
    limits: SchedulerLimits,
    overrides: BootOverrides,
    second: LoadedDraftModel | None,
) -> DraftSwitch | None:
    """Return the source of drafts, which may be the model `second`, behind a switch; None = there is none."""
    if settings.speculation == "off":
        return None
    if overrides.drafts is not None:
        return DraftSwitch(overrides.drafts)
    if second is not None:
        return DraftSwitch(second.drafts(settings.speculative_tokens))
    rows = min(limits.max_running, DRAFT_ROWS)
    if config.draft_head:
        head = HeadDrafts(settings.speculative_tokens, rows)
        is_only = settings.speculation == "mtp"
        return DraftSwitch(head if is_only else AutoDrafts(settings.speculative_tokens, rows, head))
    source = NgramDrafts(settings.speculative_tokens, rows, always=settings.speculation == "ngram")
    return DraftSwitch(source)


def _speculation(drafts: DraftSwitch, runner: ModelRunner, stream: ForwardStream) -> Speculation:
    """Return the drafts as the core uses them; steps in the core's own thread are timed by its CPU time."""
    clock = work_clock() if isinstance(stream, InlineStream) else None
    return Speculation(drafts, runner.prepare_absorption, clock)


def _lanes(limits: SchedulerLimits, drafts: DraftSource | None, rule: ReplayRule | None) -> int:
    """Return the number of lanes for drafts, or of the ring: an engine has at most one of the two."""
    most = DRAFT_ROWS if drafts is not None else 0 if rule is None else RING_LANES
    return min(limits.max_running, most)


def _connect(
    drafts: DraftSwitch | None, cache: ManagedStateCache, runner: ModelRunner, stream: ForwardStream
) -> None:
    """Let the model's head, if it is a source of drafts, use the forward stream and pages of the cache."""
    source = None if drafts is None else drafts.source
    if isinstance(source, AutoDrafts):
        head, runner.head_reads = source.head, source.reads
    elif isinstance(source, HeadDrafts):
        head = source
    else:
        return

    def compute(request: HeadRequest) -> list[Tokens]:
        return stream.wait(stream.launch(runner.prepare_drafts(request)))()

    head.room, head.compute = partial(room_for_drafts, cache), compute


def _follower(
    second: LoadedDraftModel | None,
    drafts: DraftSwitch | None,
    cache: ManagedStateCache,
    runner: ModelRunner,
    stream: ForwardStream,
    model: ModelConfig,
) -> DraftRunner | None:
    """Return the draft model, connected with its source of drafts; None = no second model drafts."""
    return None if second is None else second.follow(drafts, cache, runner, stream, model.vocab_size)


def _warm_up_follower(
    follower: DraftRunner | None, stream: ForwardStream, try_out: Callable[[Callable[[], bool]], bool]
) -> None:
    """Prepare the steps of a draft model, if there is one. Raises DeviceLost."""
    if follower is not None:
        _prepare(stream, lambda: try_out(follower.warm_up))


def _prepare(stream: ForwardStream, work: Callable[[], object]) -> None:
    """Do the work on the forward stream. Raises DeviceLost if the device is lost."""
    try:
        stream.wait(stream.launch(work))
    except Exception as error:
        if ends_the_device(error):
            raise DeviceLost(f"the device failed for good while steps were prepared: {error}") from error
        raise


def pick_device(requested: Literal["auto", "cpu", "cuda"]) -> torch.device:
    """Return the device to run on. Raises NoDevice."""
    has_cuda = torch.cuda.is_available()
    if requested == "cuda" and not has_cuda:
        raise NoDevice("--device cuda: torch sees no CUDA device here; use --device cpu or check the driver")
    return torch.device("cuda" if has_cuda and requested != "cpu" else "cpu")


def use_threads(engine: Engine, count: int | None) -> None:
    """Compute with `count` threads on a CPU from now on; None = as many as torch uses already."""
    if count is not None:
        torch.set_num_threads(count)
    if engine.kernels.library is not None:
        engine.kernels.library.set_threads(torch.get_num_threads())


def make_stream(device: torch.device, *, overlap: bool) -> ForwardStream:
    """Return the stream on which steps run on `device`.

    On a CPU it is a thread of its own if `overlap` is set, and the caller's thread otherwise.
    """
    if device.type == "cuda":
        from mamba_server.engine.execution.cuda_stream import CudaStream

        return CudaStream(device)
    return ThreadStream() if overlap else InlineStream()


def _graphs(
    settings: EngineSettings, stream: ForwardStream, plan: MemoryPlan, overrides: BootOverrides
) -> StepGraphs | None:
    if settings.decode_graphs == "off":
        return None
    if overrides.graphs is not None:
        return overrides.graphs
    from mamba_server.engine.execution.cuda_graphs import CudaGraphs
    from mamba_server.engine.execution.cuda_stream import CudaStream

    # The part of the budget that is left to steps without a graph.
    keep_free = plan.bytes_beside_models - plan.arena_bytes
    return CudaGraphs(stream, keep_free) if isinstance(stream, CudaStream) else None


def _limits(
    settings: EngineSettings, plan: MemoryPlan, device: torch.device, overrides: BootOverrides
) -> SchedulerLimits:
    # The rows of the batch are only an upper bound: within it memory decides. Each sequence needs at least a
    # slab.
    max_running = min(settings.max_running_requests or MOST_RUNNING[device.type], plan.slabs - 1)
    step_tokens = settings.chunked_prefill_tokens or MOST_STEP_TOKENS
    chunk = overrides.chunk or CHUNK[device.type]
    return SchedulerLimits(step_tokens, chunk, max_running, plan.max_model_len, plan.workload.output_tokens)


def _start_budget(overrides: BootOverrides) -> StartBudget | None:
    return StartBudget(time.monotonic) if overrides.bound_starts else None


def _pace(settings: EngineSettings, limits: SchedulerLimits, device: torch.device) -> StepPace | None:
    """Return the pace of steps; None if the settings set a number of tokens instead of a time."""
    target = settings.step_time_asked
    if target is None:
        target = STEP_TIME[device.type]
    return StepPace(target, limits.chunk, limits.step_tokens) if target else None


def _cache(
    settings: EngineSettings,
    plan: MemoryPlan,
    layout: CacheLayout,
    batch: PersistentBatch,
    fingerprint: str,
    fault: AllocationFault | None,
) -> ManagedStateCache:
    cache_settings = CacheSettings(
        reservation(plan.strategy, overlap=plan.overlap),
        track_interval=settings.track_interval,
        cap=settings.max_checkpoints_per_path,
        eviction=settings.eviction,
        prefix_caching=settings.prefix_caching,
        min_checkpoint_depth=settings.min_checkpoint_depth,
        fingerprint=fingerprint,
    )
    return build_state_cache(
        batch,
        cache_settings,
        slabs=layout.slabs,
        pages_per_slab=layout.pages_per_slab,
        page_size=plan.page_size,
        fault=fault,
    )


def _stores_integers(config: ModelConfig) -> bool:
    """Return whether a CPU keeps the checkpoint's integers as weights, and so rounds activations to int8."""
    stored = config.stored
    return stored is not None and bool(stored.int8 + stored.int4 + stored.int4_zeros)


def _audits(
    settings: EngineSettings,
    config: ModelConfig,
    plan: MemoryPlan,
    dtype: str,
    limits: SchedulerLimits,
    device: torch.device,
    core: EngineCore,
    stream: ForwardStream,
    runner: ModelRunner,
) -> AnswerAudits:
    """Return the audits that the settings ask for; `NoAudits` if there are none to make."""
    speculation = core.speculation
    if not settings.audit_share or not (settings.prefix_caching or speculation is not None):
        return NoAudits()

    def withdraw(quarantined: list[Quarantined]) -> None:
        if core.transfers is not None:
            core.transfers.withdraw(quarantined)

    return ResumedAnswers(
        core.cache,
        stream,
        runner,
        share=settings.audit_share,
        bounds=Precision(
            dtype,
            plan.state_dtype,
            int8=settings.quantization in ("int8", "fp8")
            or settings.kv_cache_dtype != "auto"
            or (device.type == "cpu" and _stores_integers(config)),
            experts=config.moe is not None,
            batch_invariant=settings.batch_invariant and device.type == "cpu",
        ).bounds,
        chunk=limits.chunk,
        random=random.Random(core.seed).random,
        withdraw=withdraw,
        adapters=core.adapters,
        drafts=None if speculation is None else speculation.drafts,
        clock=core.clock,
    )


def ready_plan(engine: Engine) -> dict[str, Any]:
    """Return the plan as the admin call and the API show it.

    It includes threads, kernels, the number of drafts with speculation, the seed of requests without one,
    prepared decode steps, and Triton kernels that cannot be used.
    """
    plan = {
        **engine.plan.to_json(),
        "threads": torch.get_num_threads(),
        "kernels": engine.kernels.name,
        "seed": engine.core.seed,
    }
    if engine.decode_steps:
        plan["decodeSteps"] = engine.decode_steps
    if (speculation := engine.core.speculation) is not None:
        plan["speculativeTokens"] = speculation.drafts.most
    if (draft := engine.model.draft_model) is not None:
        plan["draftModel"] = draft.uri
    if (rings := engine.core.scheduler.rings) is not None:
        plan["stateReplay"] = rings.tokens
    if left_out := engine.kernels.operators.left_out:
        plan["kernelsLeftOut"] = left_out
    return plan
