"""From settings to an engine: what is built is what was planned, and every failure is named and coded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import mamba_server
from mamba_api.v1alpha1 import MambaDeployment
from mamba_kernels.cpu import library as libraries
from mamba_kernels.kernel_choice import VARIABLE
from mamba_planner import Device, plan_engine
from mamba_planner.errors import InsufficientMemory
from mamba_planner.memory import MOST_RUNNING, RUNTIME_BYTES
from mamba_planner.strategy import reservation
from mamba_server.engine.audits.resumed_answers import ResumedAnswers
from mamba_server.engine.boot import (
    NO_OVERRIDES,
    BootOverrides,
    Engine,
    boot,
    make_stream,
    pick_device,
    ready_plan,
)
from mamba_server.engine.errors import NoDevice
from mamba_server.engine.model_to_load import device_memory
from mamba_server.engine.stepping.forward_stream import InlineStream, ThreadStream
from mamba_server.model.checkpoint.errors import UnsupportedModel
from mamba_settings.engine_settings import EngineSettings
from mamba_settings.spec_settings import engine_settings
from simulated_stream import SimulatedStream

assert mamba_server.__file__ is not None
TINY = Path(mamba_server.__file__).parent / "builtin" / "tiny-recall"
CPU = torch.device("cpu")


def start(report: Any = lambda *_: None, trial: BootOverrides = NO_OVERRIDES, **settings: Any) -> Engine:
    """Return an engine without overlap, which has no thread to end."""
    given = {"model": str(TINY), "device": "cpu", "arena_bytes": 8 << 20, "overlap": False, **settings}
    return boot(EngineSettings(**given), report, trial)


# --- device and stream ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "there", "device"),
    [("cpu", True, "cpu"), ("cpu", False, "cpu"), ("auto", False, "cpu"), ("auto", True, "cuda"),
     ("cuda", True, "cuda")],
)  # fmt: skip
def test_the_device_is_the_wanted_one_or_the_best_there_is(
    wanted: Any, there: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert pick_device(wanted).type == device


def test_a_device_that_is_not_here_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(NoDevice, match=r"no CUDA device.*--device cpu") as caught:
        start(device="cuda")
    assert caught.value.exit_code == 2


def test_overlap_on_a_cpu_needs_a_thread_and_no_overlap_none() -> None:
    assert isinstance(make_stream(CPU, overlap=False), InlineStream)
    threaded = make_stream(CPU, overlap=True)
    assert isinstance(threaded, ThreadStream)
    threaded.close()


@pytest.mark.parametrize(
    ("wanted", "stream"), [(None, InlineStream), (False, InlineStream), (True, ThreadStream)]
)
def test_on_a_cpu_one_step_follows_the_other_unless_overlap_is_asked_for(
    wanted: bool | None, stream: type
) -> None:
    engine = start(overlap=wanted)
    assert isinstance(engine.stream, stream)
    assert engine.core.overlap is engine.plan.overlap is (wanted is True)
    assert ready_plan(engine)["overlap"] is engine.plan.overlap
    assert engine.core.cache.strategy == reservation(engine.plan.strategy, overlap=engine.plan.overlap)
    engine.stream.close()


def test_a_trial_may_put_another_stream_in_its_place() -> None:
    other = SimulatedStream(lambda _: 0)
    assert start(trial=BootOverrides(stream=lambda _: other)).stream is other


# --- what is built -------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["NoBuffer", "ExtraBufferLazy", "ExtraBuffer"])
def test_what_runs_is_what_the_plan_says(strategy: Any) -> None:
    engine = start(
        strategy=strategy, max_running_requests=3, max_model_len=512, page_size=32, track_interval=64
    )
    plan, core = engine.plan, engine.core
    assert (plan.strategy, core.cache.strategy.name) == (strategy, strategy)
    assert core.cache.strategy.slots_per_sequence == plan.slots_per_sequence
    assert (core.cache.arena.slabs, core.cache.arena.pages_per_slab) == (plan.slabs, plan.pages_per_slab)
    assert core.cache.batch.max_running == core.scheduler.limits.max_running == plan.max_running_requests == 3
    assert core.scheduler.limits.max_model_len == plan.max_model_len == 512
    assert core.cache.batch.pages.shape == (core.cache.batch.rows, 512 // 32)
    assert (core.cache.page_size, core.cache.track_interval) == (32, 64)
    assert plan.arena_bytes <= 8 << 20


def test_how_many_run_is_bounded_by_what_was_asked_for_and_by_slabs_and_not_by_the_plan() -> None:
    plain, asked, tiny = (
        start(),
        start(max_running_requests=20),
        start(arena_bytes=20 * 65536, max_model_len=128),
    )
    assert plain.core.scheduler.limits.max_running == MOST_RUNNING["cpu"] > plain.plan.max_running_requests
    assert asked.core.scheduler.limits.max_running == 20 > asked.plan.max_running_requests
    assert tiny.core.scheduler.limits.max_running == tiny.plan.slabs - 1 < MOST_RUNNING["cpu"]
    assert plain.core.scheduler.admission.budget is not None


@pytest.mark.parametrize(
    ("asked", "target"),
    [({}, 0.2), ({"step_time": 0.5}, 0.5), ({"step_time": 0}, None), ({"chunked_prefill_tokens": 96}, None),
     ({"chunked_prefill_tokens": 96, "step_time": 0.1}, 0.1)],
)  # fmt: skip
def test_a_step_keeps_to_a_time_unless_a_number_of_tokens_was_asked_for(
    asked: dict[str, Any], target: float | None
) -> None:
    core = start(**asked).core
    assert core.scheduler.limits.step_tokens == asked.get("chunked_prefill_tokens", 2048)
    if target is None:
        assert core._pace is None
        return
    assert core._pace is not None
    core._pace.observe(1, 0, 0.75 * target)
    core._pace.observe(1, 48, 10 * target)
    for _ in range(20):
        core._pace.observe(1, 48, target)
    # A quarter of the time for 48 tokens: just that fits, and no step beside answers is shorter.
    assert core._pace.tokens(1) == 49


@pytest.mark.parametrize("eviction", ["LRU", "RecomputeCost"])
def test_limits_and_policies_of_the_settings_are_in_force(eviction: Any) -> None:
    core = start(chunked_prefill_tokens=96, max_checkpoints_per_path=7, eviction=eviction).core

    assert core.scheduler.limits.step_tokens == 96
    assert core.cache.cap == 7
    assert core.cache.tree.eviction.policy == eviction


def test_a_cache_that_is_switched_off_is_off() -> None:
    engine = start(prefix_caching=False)
    assert not engine.core.cache.prefix_caching
    assert engine.plan.checkpoints == 0


def test_the_least_depth_of_a_checkpoint_goes_from_the_yaml_to_the_cache() -> None:
    spec = {
        "model": {"uri": f"file://{TINY}"},
        "stateCache": {"minCheckpointDepth": 64},
        "resources": {"gpus": 0},
    }
    body = {"metadata": {"name": "one"}, "spec": spec}
    settings = engine_settings(MambaDeployment.model_validate(body))

    assert settings.document()["min_checkpoint_depth"] == 64
    assert start(**settings.document()).core.cache.min_checkpoint_depth == 64
    assert start().core.cache.min_checkpoint_depth == 0


def test_the_share_of_audited_answers_goes_from_the_yaml_to_the_engine() -> None:
    spec = {
        "model": {"uri": f"file://{TINY}"},
        "stateCache": {"auditShare": 0.5},
        "resources": {"gpus": 0},
    }
    settings = engine_settings(MambaDeployment.model_validate({"metadata": {"name": "one"}, "spec": spec}))

    assert settings.document()["audit_share"] == 0.5
    audits = start(**settings.document()).core.audits
    assert isinstance(audits, ResumedAnswers)
    assert audits.share == 0.5


@pytest.mark.parametrize(
    ("settings", "scores", "states"),
    [
        ({"dtype": "float32", "state_dtype": "float32"}, 0.002, 0.001),
        ({"dtype": "float32", "state_dtype": "float16"}, 0.1, 0.1),
        ({"dtype": "bfloat16", "state_dtype": "float16"}, 0.75, 0.5),
        ({"dtype": "bfloat16", "batch_invariant": True}, 0.0001, 0.0),
    ],
)
def test_the_bounds_of_an_audit_are_those_of_the_precision(
    settings: dict[str, Any], scores: float, states: float
) -> None:
    audits = start(**settings).core.audits
    assert isinstance(audits, ResumedAnswers)
    assert audits.bounds == (scores, states)


def test_the_memory_that_was_named_is_what_is_planned_with() -> None:
    engine = start(arena_bytes=None, device_memory="384Mi", utilization=0.5)
    assert engine.plan.budget_bytes == ready_plan(engine)["budgetBytes"] == 192 << 20


def test_a_declared_workload_is_what_the_engine_plans_for() -> None:
    plain = start(speculation="off")
    traffic = {"workload_prompt_tokens": 300, "workload_output_tokens": 40, "workload_concurrency": 2}
    declared = start(speculation="off", **traffic)

    assert not plain.plan.workload.declared
    assert (declared.plan.workload.declared, declared.plan.workload.tokens) == (True, 340)
    assert declared.plan.planned_running == 2 != plain.plan.planned_running


def test_the_engine_plans_what_anyone_plans_from_its_settings() -> None:
    engine = start(workload_concurrency=2, strategy="ExtraBufferLazy")
    settings = EngineSettings(
        model="elsewhere", device="cpu", arena_bytes=8 << 20, overlap=False, workload_concurrency=2,
        strategy="ExtraBufferLazy",
    )  # fmt: skip

    assert engine.plan == plan_engine(engine.model, settings, Device("cpu", 0), engine.plan.weights_bytes)


def test_half_as_wide_weights_are_counted_and_held_as_such() -> None:
    wide, narrow = start(dtype="float32"), start(dtype="bfloat16")
    assert wide.plan.weights_bytes == 2 * narrow.plan.weights_bytes


def test_states_of_another_type_or_model_are_never_taken_for_each_other() -> None:
    engines = [
        start(), start(dtype="bfloat16"), start(state_dtype="float16"),
        start(dtype="bfloat16", state_dtype="float16"),
    ]  # fmt: skip
    prints = [engine.core.cache.tree.fingerprint for engine in engines]
    assert len(set(prints)) == 4
    assert start().core.cache.tree.fingerprint == prints[0]


def test_progress_goes_from_the_weights_to_the_arena_and_every_stage_ends() -> None:
    told: list[tuple[str, int, int]] = []
    engine = start(report=lambda *each: told.append(each))
    stages = list(dict.fromkeys(stage for stage, _, _ in told))
    assert stages[-1] == "allocating the arena"
    assert len(stages) >= 2
    for stage in stages:
        done = [(at, total) for name, at, total in told if name == stage]
        assert done[-1][0] == done[-1][1] > 0
        assert done == sorted(done)
    assert told[-1][2] == engine.plan.arena_bytes


def test_the_first_start_says_that_it_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Expect a line about the compilation: it takes a minute in which nothing else is reported."""
    compiler = tmp_path / "compiler"
    compiler.write_text(
        '#!/bin/sh\n[ "$1" != --version ] || exit 0\n'
        'while [ $# -gt 0 ]; do [ "$1" != -o ] || echo none > "$2"; shift; done\n'
    )
    compiler.chmod(0o755)
    for name, value in {"CXX": compiler, "XDG_CACHE_HOME": tmp_path, VARIABLE: "auto"}.items():
        monkeypatch.setenv(name, str(value))
    told: list[tuple[str, int, int]] = []
    for _ in range(2):
        libraries.library.cache_clear()
        try:
            start(report=lambda *each: told.append(each))
        finally:
            libraries.library.cache_clear()
    assert [each for each in told if "compiling" in each[0]] == [
        ("compiling the kernels, this once", 0, 1), ("compiling the kernels, this once", 1, 1)
    ]  # fmt: skip


# --- what is refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "code", "says"),
    [
        ({"model": "/no/such/place"}, 2, "/no/such/place"),
        ({"track_interval": 100}, 2, "track_interval 100 must be a multiple of the page size 16"),
        ({"max_model_len": 1}, 2, "max_model_len 1 is too short"),
        ({"arena_bytes": 1}, 3, "the arena has 1"),
        ({"arena_bytes": 1 << 20, "max_model_len": 10**6}, 3, "one sequence of 1000000 tokens"),
        ({"arena_bytes": None, "device_memory": "100Mi"}, 3, "What would fit: a machine with"),
    ],
)
def test_what_cannot_be_built_is_refused_before_memory_is_taken(
    settings: dict[str, Any], code: int, says: str
) -> None:
    told: list[str] = []
    with pytest.raises(Exception, match=says) as caught:
        start(report=lambda stage, *_: told.append(stage), **settings)
    assert getattr(caught.value, "exit_code", None) == code
    assert "allocating the arena" not in told


def test_a_model_that_is_not_served_is_refused_whatever_its_plan(tmp_path: Path) -> None:
    """And before anything is planned, compiled or read of its weights."""
    config = json.loads((TINY / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps({**config, "quantization_config": {"quant_method": "gptq", "bits": 3}})
    )
    (tmp_path / "model.safetensors").write_bytes((TINY / "model.safetensors").read_bytes())
    told: list[str] = []
    with pytest.raises(UnsupportedModel, match="gptq") as caught:
        start(lambda stage, *_: told.append(stage), model=str(tmp_path), arena_bytes=1)
    assert caught.value.exit_code == 2
    assert told == []


# --- the workspace ---------------------------------------------------------------------------------------


def workspace(engine: Engine) -> int:
    (found,) = (line.bytes for line in engine.plan.ledger if line.item == "workspace")
    return found - RUNTIME_BYTES["cpu"]


def test_what_the_worst_step_took_is_what_is_planned_with() -> None:
    ran: list[str] = []

    def measure(work: Any) -> int:
        work()
        ran.append("the steps")
        return 5 << 20

    given = {"arena_bytes": None, "device_memory": "1Gi", "chunked_prefill_tokens": 64, "max_model_len": 512,
             "speculation": "off"}  # fmt: skip
    plain, measured = start(**given), start(trial=BootOverrides(measure=measure), **given)
    assert ran == ["the steps"]
    assert workspace(measured) == 5 << 20 < workspace(plain)
    assert measured.plan.arena_bytes > plain.plan.arena_bytes
    assert measured.core.cache.arena.slabs == measured.plan.slabs


def test_an_arena_of_a_given_size_is_not_measured_for() -> None:
    def measure(_: Any) -> int:
        raise AssertionError

    assert start(trial=BootOverrides(measure=measure)).plan.arena_bytes == start().plan.arena_bytes


def test_a_worst_step_that_leaves_nothing_or_does_not_fit_is_refused_with_numbers() -> None:
    def short(_: Any) -> int:
        raise torch.OutOfMemoryError("CUDA out of memory")

    given = {"arena_bytes": None, "device_memory": "256Mi", "chunked_prefill_tokens": 64}
    with pytest.raises(InsufficientMemory, match=r"workspace 1\.1Gi"):
        start(trial=BootOverrides(measure=lambda _: 1 << 30), **given)
    with pytest.raises(InsufficientMemory, match="64 tokens") as caught:
        start(trial=BootOverrides(measure=short), **given)
    assert caught.value.exit_code == 3


def test_a_gpu_s_free_memory_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (3 << 30, 8 << 30))
    found = device_memory(EngineSettings(model="any"), torch.device("cuda"))
    assert found == Device("cuda", 8 << 30, declared=False, free=3 << 30)
    configured = device_memory(EngineSettings(model="any", device_memory="4Gi"), torch.device("cuda"))
    assert configured == Device("cuda", 4 << 30)
