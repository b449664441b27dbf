"""From device memory to the arena, with the numbers in every refusal."""

import json
from pathlib import Path

import pytest

from mamba_planner import Constraints, Device, InsufficientMemory, MemoryBudget, UnusableInput
from mamba_planner.families import model_config_from_hf
from mamba_planner.memory import RUNTIME_BYTES
from mamba_planner.model_config import ModelConfig
from mamba_planner.workspace import captured_bytes
from mamba_server.host_memory import available_bytes
from mamba_settings.byte_size import binary_size
from mamba_settings.engine_settings import EngineSettings

GIB = 1 << 30


@pytest.fixture
def nano() -> ModelConfig:
    path = Path(__file__).parents[2] / "golden" / "configs" / "nemotron-nano-9b-v2.json"
    return model_config_from_hf(json.loads(path.read_text()))


def test_the_parts_sum_to_the_share_of_the_device(nano: ModelConfig) -> None:
    budget = MemoryBudget.of(nano, Constraints(utilization=0.88), Device("cuda", 80 * GIB))
    assert budget.total == int(80 * GIB * 0.88)
    assert budget.weights + budget.workspace + budget.arena == budget.total
    assert budget.workspace > RUNTIME_BYTES["cuda"]


def test_true_weights_win_over_the_parameter_count(nano: ModelConfig) -> None:
    budget = MemoryBudget.of(nano, Constraints(), Device("cuda", 80 * GIB), weights=9 * GIB)
    assert budget.weights == 9 * GIB


def test_weights_alone_may_be_too_much_and_the_numbers_say_so(nano: ModelConfig) -> None:
    with pytest.raises(InsufficientMemory) as caught:
        MemoryBudget.of(nano, Constraints(), Device("cuda", 16 * GIB))
    assert "weights 16.6Gi" in str(caught.value)
    assert "14.4Gi" in str(caught.value)
    assert caught.value.need > caught.value.have == int(16 * GIB * 0.9)
    assert caught.value.exit_code == 3


def test_an_explicit_arena_needs_no_device_memory(nano: ModelConfig) -> None:
    budget = MemoryBudget.of(nano, Constraints(arena_bytes=5 * GIB), Device("cuda", 0))
    assert budget.arena == 5 * GIB
    assert budget.total == budget.weights + budget.workspace + 5 * GIB


def test_an_arena_that_measured_main_memory_has_no_room_for_does_not_fit(nano: ModelConfig) -> None:
    asked = Constraints(arena_bytes=50 * GIB)
    with pytest.raises(InsufficientMemory, match=r"50\.0Gi.*64\.0Gi") as caught:
        MemoryBudget.of(nano, asked, Device("cpu", 64 * GIB, declared=False))
    assert caught.value.need > caught.value.have == 64 * GIB
    for elsewhere in (Device("cpu", 64 * GIB), Device("cpu", 80 * GIB, declared=False)):
        assert MemoryBudget.of(nano, asked, elsewhere).arena == 50 * GIB


def test_a_cpu_arena_is_kept_small_only_when_nobody_named_the_memory(nano: ModelConfig) -> None:
    assert MemoryBudget.of(nano, Constraints(), Device("cpu", 64 * GIB, declared=False)).arena_limited
    assert not MemoryBudget.of(nano, Constraints(), Device("cpu", 64 * GIB)).arena_limited
    assert not MemoryBudget.of(nano, Constraints(), Device("cuda", 64 * GIB, declared=False)).arena_limited


def test_a_track_interval_off_the_page_grid_is_refused_with_one_that_works() -> None:
    with pytest.raises(UnusableInput, match=r"250.*\b240$"):
        Constraints(track_interval=250)


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5])
def test_a_utilization_outside_its_range_is_refused(share: float) -> None:
    with pytest.raises(UnusableInput, match="utilization"):
        Constraints(utilization=share)


def test_constraints_take_over_every_setting_of_an_engine() -> None:
    settings = EngineSettings(
        model="m", strategy="NoBuffer", state_dtype="float16", dtype="bfloat16", page_size=32,
        track_interval=64, max_model_len=4096, max_running_requests=7, chunked_prefill_tokens=99,
        max_checkpoints_per_path=2, prefix_caching=False, overlap=False, utilization=0.5, arena_bytes="2GiB",
    )  # fmt: skip
    assert Constraints.of(settings) == Constraints(
        strategy="NoBuffer", state_dtype="float16", dtype="bfloat16", page_size=32, track_interval=64,
        max_model_len=4096, max_running_requests=7, chunked_prefill_tokens=99, step_time=0.0,
        max_checkpoints_per_path=2, prefix_caching=False, overlap=False, utilization=0.5, arena_bytes=2 * GIB,
    )  # fmt: skip


def test_auto_settings_leave_the_choice_to_the_planner() -> None:
    constraints = Constraints.of(EngineSettings(model="m"))
    assert (constraints.strategy, constraints.state_dtype, constraints.dtype) == (None, None, None)
    assert constraints.arena_bytes is None


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0"), (1023, "1023"), (1024, "1.0Ki"), (3 * GIB + GIB // 10, "3.1Gi"), (-GIB, "-1.0Gi"),
     (5 << 40, "5.0Ti")],
)  # fmt: skip
def test_bytes_are_spelled_like_quantities(count: int, words: str) -> None:
    assert binary_size(count) == words


def test_the_cgroup_limit_counts_when_it_is_tighter_than_the_machine(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 100 kB\nMemAvailable:   64000 kB\n")
    assert available_bytes(meminfo, tmp_path) == 64_000 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert available_bytes(meminfo, tmp_path) == 64_000 * 1024
    (tmp_path / "memory.max").write_text("5000\n")
    assert available_bytes(meminfo, tmp_path) == 4000
    (tmp_path / "memory.stat").write_text("anon 3\ninactive_file 500\n")
    assert available_bytes(meminfo, tmp_path) == 4500


def test_a_meminfo_without_the_line_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 1 kB\n")
    with pytest.raises(OSError, match="MemAvailable"):
        available_bytes(tmp_path / "meminfo", tmp_path)


def test_what_others_hold_of_a_gpu_is_not_planned_with(nano: ModelConfig) -> None:
    whole = MemoryBudget.of(nano, Constraints(), Device("cuda", 80 * GIB))
    assert MemoryBudget.of(nano, Constraints(), Device("cuda", 80 * GIB, free=79 * GIB)).total == whole.total
    shared = MemoryBudget.of(nano, Constraints(), Device("cuda", 80 * GIB, free=40 * GIB))
    assert shared.total == 40 * GIB
    with pytest.raises(InsufficientMemory) as caught:
        MemoryBudget.of(nano, Constraints(), Device("cuda", 80 * GIB, free=8 * GIB))
    assert caught.value.have == 8 * GIB


def test_a_workspace_that_was_measured_takes_the_place_of_the_arithmetic(nano: ModelConfig) -> None:
    planned = MemoryBudget.of(nano, Constraints(), Device("cuda", 80 * GIB))
    measured = MemoryBudget.of(nano, Constraints(), Device("cuda", 80 * GIB), workspace=GIB)
    assert measured.workspace == GIB + RUNTIME_BYTES["cuda"] + captured_bytes(nano, "bfloat16")
    assert measured.arena - planned.arena == planned.workspace - measured.workspace
