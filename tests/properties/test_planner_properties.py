"""Laws of the planner over random models, memories and workloads."""

from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mamba_planner import (
    BudgetError,
    Constraints,
    Device,
    InsufficientMemory,
    MemoryPlan,
    Workload,
    plan,
    plan_engine,
)
from mamba_planner.candidates import SlabGeometry, expected_saved
from mamba_planner.cards.gpu_sizes import SIZES
from mamba_planner.model_config import AttentionConfig, MambaConfig, ModelConfig
from mamba_planner.strategy import STRATEGIES, reservation
from mamba_settings.engine_settings import EngineSettings

laws = settings(max_examples=25)
MIB = 1 << 20


@st.composite
def models(draw: st.DrawFn) -> ModelConfig:
    mamba = MambaConfig(
        heads=draw(st.sampled_from([2, 8, 48, 128])), head_dim=draw(st.sampled_from([16, 64, 80])),
        state_size=draw(st.sampled_from([16, 128])), groups=draw(st.sampled_from([1, 2])), conv_kernel=4,
        chunk_size=128, conv_bias=True, proj_bias=False, dt_limit=(0.0, float("inf")), norm_eps=1e-5,
    )  # fmt: skip
    recurrent, attention = draw(st.integers(1, 40)), draw(st.integers(0, 8))
    heads = AttentionConfig(4, draw(st.sampled_from([1, 2, 4])), 64, bias=False, scale=0.125)
    return ModelConfig(
        family="nemotron_h", architecture="X", hidden_size=256, vocab_size=1000,
        layers=("mamba",) * recurrent + ("attention",) * attention, mamba=mamba, gated_delta=None,
        attention=heads if attention else None,
        mlp=None, norm_eps=1e-5, tie_embeddings=True, residual_in_fp32=False,
        max_position=draw(st.sampled_from([512, 8192, 131_072])), dtype="bfloat16", bos_token_id=1,
        eos_token_ids=(2,), parameters=draw(st.integers(1_000, 50_000_000)),
        state_dtype_hint=draw(st.sampled_from([None, "float32"])),
    )  # fmt: skip


workloads = st.builds(
    Workload,
    prompt_tokens=st.integers(1, 20_000),
    output_tokens=st.integers(1, 4000),
    shared_prefix_ratio=st.floats(0, 1),
    concurrency=st.none() | st.integers(1, 200),
    declared=st.just(True),
)
constraint_sets = st.builds(
    Constraints,
    strategy=st.sampled_from([None, "NoBuffer", "ExtraBuffer", "ExtraBufferLazy"]),
    state_dtype=st.sampled_from([None, "float32", "float16"]),
    page_size=st.sampled_from([1, 16, 64]),
    track_interval=st.just(256),
    max_model_len=st.none() | st.integers(2, 10_000),
    max_running_requests=st.none() | st.integers(1, 300),
    prefix_caching=st.booleans(),
    overlap=st.booleans(),
    utilization=st.sampled_from([0.5, 0.9, 1.0]),
)
devices = st.builds(
    Device, st.sampled_from(["cuda", "cpu"]), st.integers(1200, 40_000).map(lambda mib: mib * MIB),
    st.booleans(),
)  # fmt: skip


def attempt(
    model: ModelConfig, constraints: Constraints, device: Device, workload: Workload
) -> MemoryPlan | BudgetError:
    try:
        return plan(model, constraints, device, workload=workload)
    except BudgetError as error:
        return error


@laws
@given(models(), constraint_sets, devices, workloads)
def test_the_ledger_sums_to_the_budget_and_no_line_is_negative(
    model: ModelConfig, constraints: Constraints, device: Device, workload: Workload
) -> None:
    result = attempt(model, constraints, device, workload)
    assume(isinstance(result, MemoryPlan))
    assert isinstance(result, MemoryPlan)
    assert sum(line.bytes for line in result.ledger) == result.budget_bytes
    assert all(line.bytes >= 0 for line in result.ledger)
    assert result.budget_bytes <= device.memory


@laws
@given(models(), constraint_sets, devices, workloads)
def test_a_chosen_plan_fits_at_its_largest_concurrency_and_for_its_longest_sequence(
    model: ModelConfig, constraints: Constraints, device: Device, workload: Workload
) -> None:
    result = attempt(model, constraints, device, workload)
    assume(isinstance(result, MemoryPlan))
    assert isinstance(result, MemoryPlan)
    each = result.slots_per_sequence
    free = result.slabs - 1

    def slabs(sequences: int, tokens: int) -> int:
        pages = sequences * -(-tokens // result.page_size) if result.page_bytes else 0
        return sequences * each + (-(-pages // result.pages_per_slab) if pages else 0)

    assert slabs(result.max_running_requests, result.workload.tokens) <= free
    assert slabs(1, result.max_model_len) <= free
    assert 1 <= result.planned_running <= result.max_running_requests
    assert result.workload.tokens <= result.max_model_len
    assert result.slots * result.slab_bytes <= result.arena_bytes
    if constraints.max_running_requests is not None:
        assert result.max_running_requests <= constraints.max_running_requests
    if constraints.max_model_len is not None:
        assert result.max_model_len == constraints.max_model_len


@laws
@given(models(), constraint_sets, devices, workloads, st.integers(0, 20_000))
def test_more_memory_never_runs_fewer_sequences_with_the_same_choice(
    model: ModelConfig, constraints: Constraints, device: Device, workload: Workload, more: int
) -> None:
    fixed = replace(constraints, strategy="ExtraBufferLazy", state_dtype="float32", max_model_len=1024)
    small = attempt(model, fixed, device, workload)
    large = attempt(model, fixed, replace(device, memory=device.memory + more * MIB), workload)
    if isinstance(small, MemoryPlan):
        assert isinstance(large, MemoryPlan)
        assert large.max_running_requests >= small.max_running_requests
        assert large.arena_bytes >= small.arena_bytes


engines = st.builds(
    EngineSettings,
    model=st.just("file:///any"),
    strategy=st.sampled_from(["Auto", "NoBuffer", "ExtraBuffer", "ExtraBufferLazy"]),
    state_dtype=st.sampled_from(["auto", "float32", "float16"]),
    max_model_len=st.none() | st.integers(2, 10_000),
    max_running_requests=st.none() | st.integers(1, 300),
    prefix_caching=st.booleans(),
    utilization=st.sampled_from([0.5, 0.9, 1.0]),
    workload_prompt_tokens=st.none() | st.integers(1, 20_000),
    workload_concurrency=st.none() | st.integers(1, 400),
)
gpus = st.builds(
    Device, st.just("cuda"), st.sampled_from(SIZES) | st.integers(8 << 30, 300 << 30), st.booleans()
)


def attempt_engine(
    model: ModelConfig, asked: EngineSettings, gpu: Device, weights: int | None = None
) -> MemoryPlan | BudgetError:
    try:
        return plan_engine(model, asked, gpu, weights)
    except BudgetError as error:
        return error


@laws
@given(models(), engines, gpus, st.integers(0, 30 << 30), st.none() | st.integers(1 << 30, 40 << 30))
def test_what_a_plan_tells_of_another_size_is_the_plan_that_is_made_there(
    model: ModelConfig, asked: EngineSettings, gpu: Device, held: int, weights: int | None
) -> None:
    gpu = replace(gpu, free=None if gpu.declared else max(gpu.memory - held, 0))
    made = attempt_engine(model, asked, gpu, weights)
    assume(isinstance(made, MemoryPlan))
    assert isinstance(made, MemoryPlan)
    sizes = (made.one_size_down, made.one_size_up)
    assert any(sizes)
    for size in filter(None, sizes):
        there, told = attempt_engine(model, asked, gpu.resized(size.memory), weights), size.chosen
        if not isinstance(there, MemoryPlan):
            # The refusal itself also names a size that would do, which one size among others does not.
            assert isinstance(there, InsufficientMemory)
            assert (told, size.misfit) == (None, there.message)
            continue
        assert told is not None
        assert (told.strategy, told.state_dtype) == (there.strategy, there.state_dtype)
        assert (told.slots, told.pages, told.running) == (
            there.slots, there.pages, there.max_running_requests
        )  # fmt: skip
        assert (told.checkpoints, told.saved) == (there.checkpoints, there.expected_saved)
        assert told.max_model_len == there.max_model_len


@laws
@given(models(), engines, gpus, st.integers(1, 400))
def test_a_larger_size_never_has_fewer_slots_or_sequences_with_the_same_choice(
    model: ModelConfig, asked: EngineSettings, gpu: Device, concurrency: int
) -> None:
    fixed = asked.model_copy(
        update={
            "strategy": "ExtraBufferLazy",
            "state_dtype": "float32",
            "max_model_len": 1024,
            "workload_concurrency": concurrency,
        }
    )
    made = attempt_engine(model, fixed, gpu)
    assume(isinstance(made, MemoryPlan))
    assert isinstance(made, MemoryPlan)
    if (up := made.one_size_up) is not None:
        assert up.chosen is not None
        assert up.chosen.slots >= made.slots
        assert up.chosen.running >= made.max_running_requests


@laws
@given(models(), constraint_sets, devices, workloads)
def test_what_is_asked_for_is_what_is_planned_and_every_other_choice_has_a_reason(
    model: ModelConfig, constraints: Constraints, device: Device, workload: Workload
) -> None:
    result = attempt(model, constraints, device, workload)
    assume(isinstance(result, MemoryPlan))
    assert isinstance(result, MemoryPlan)
    assert constraints.strategy in (None, result.strategy)
    assert constraints.state_dtype in (None, result.state_dtype)
    named = {(each.strategy, each.state_dtype) for each in result.rejected}
    assert len(named) == len(result.rejected) == 5
    assert (result.strategy, result.state_dtype) not in named
    assert all(each.reason for each in result.rejected)


@laws
@given(
    st.integers(1, 10**7), st.integers(0, 10**5), st.sampled_from([1, 16, 64]), st.integers(0, 500),
    st.integers(1, 5), st.integers(1, 5000),
)  # fmt: skip
def test_the_largest_concurrency_is_exact(
    state: int, kv: int, page_size: int, slabs: int, slots: int, tokens: int
) -> None:
    page = kv * page_size
    unit = page or 256
    shape = SlabGeometry(state, kv, page_size, page, max(1, -(-state // unit)) * unit)
    most = shape.most(slabs, slots, tokens)
    assert shape.slabs(most, slots, tokens) <= slabs or most == 0
    assert shape.slabs(most + 1, slots, tokens) > slabs


@laws
@given(workloads, st.integers(1, 500), st.integers(0, 2000), st.booleans())
def test_expected_savings_are_a_share_and_grow_with_checkpoints(
    workload: Workload, running: int, checkpoints: int, caching: bool
) -> None:
    constraints = Constraints(prefix_caching=caching)
    for strategy in STRATEGIES:
        reserved = reservation(strategy, overlap=True)
        few = expected_saved(reserved, constraints, workload, running, checkpoints)
        many = expected_saved(reserved, constraints, workload, running, checkpoints + 1)
        assert 0 <= few <= many <= workload.shared_prefix_ratio
        assert caching or many == 0
