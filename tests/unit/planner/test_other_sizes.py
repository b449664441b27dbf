"""Effects of one GPU size more or less: the plan of that memory; none where memory decides nothing."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mamba_planner import Device, InsufficientMemory, MemoryPlan, plan_engine
from mamba_planner.candidates import evaluate
from mamba_planner.cards.gpu_sizes import MIB, SIZES
from mamba_planner.errors import FittingSize
from mamba_planner.families import model_config_from_hf
from mamba_planner.memory_plan import OtherSize
from mamba_planner.model_config import ModelConfig
from mamba_settings.byte_size import binary_size
from mamba_settings.engine_settings import EngineSettings

CONFIGS = Path(__file__).parents[2] / "golden" / "configs"


def model(name: str) -> ModelConfig:
    return model_config_from_hf(json.loads((CONFIGS / f"{name}.json").read_text()))


NANO = model("nemotron-nano-9b-v2")
H100 = Device("cuda", 81_559 * MIB)


def settings(**given: Any) -> EngineSettings:
    return EngineSettings(model="file:///nano", **given)


def said(size: OtherSize | None) -> dict[str, Any]:
    assert size is not None
    return size.to_status()


def as_planned(made: MemoryPlan, memory: str) -> dict[str, Any]:
    """Return a plan in the form in which another plan includes it."""
    return {
        "memory": memory,
        "fits": True,
        "strategy": made.strategy,
        "stateDtype": made.state_dtype,
        "slots": made.slots,
        "pages": made.pages,
        "maxRunningRequests": made.max_running_requests,
        "maxModelLen": made.max_model_len,
        "checkpoints": made.checkpoints,
        "resumed": f"{made.expected_saved:.0%}",
    }


@pytest.mark.parametrize(
    "given",
    [
        {}, {"workload_concurrency": 64}, {"workload_concurrency": 300}, {"strategy": "NoBuffer"},
        {"state_dtype": "float16"}, {"utilization": 0.7, "max_running_requests": 16},
        {"prefix_caching": False, "max_model_len": 4096},
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["nemotron-nano-9b-v2", "codestral-mamba-7b"])
def test_what_is_told_of_a_size_is_what_is_planned_there(name: str, given: dict[str, Any]) -> None:
    of, asked = model(name), settings(**given)
    made = plan_engine(of, asked, H100, weights_bytes=9 << 30, workspace=1 << 30)
    for mib, size in ((46_068, made.one_size_down), (97_887, made.one_size_up)):
        there = plan_engine(of, asked, Device("cuda", mib * MIB), weights_bytes=9 << 30, workspace=1 << 30)
        assert said(size) == as_planned(there, f"{mib}Mi")


def test_a_size_on_which_nothing_fits_has_the_planners_reason() -> None:
    asked, small = settings(), Device("cuda", 15_360 * MIB)
    with pytest.raises(InsufficientMemory) as refused:
        plan_engine(NANO, asked, small)
    size = plan_engine(NANO, asked, Device("cuda", 23_034 * MIB)).one_size_down
    assert said(size) == {"memory": "15Gi", "fits": False, "reason": refused.value.message}


def test_a_size_whose_arena_is_too_small_for_one_sequence_has_that_reason() -> None:
    asked, small = settings(max_model_len=131_072), Device("cuda", 23_028 * MIB)
    with pytest.raises(InsufficientMemory, match="131072 tokens") as refused:
        plan_engine(NANO, asked, small)
    size = plan_engine(NANO, asked, Device("cuda", 32_607 * MIB)).one_size_down
    assert said(size)["reason"] == refused.value.message


def refusal(of: ModelConfig, device: Device, **given: Any) -> InsufficientMemory:
    with pytest.raises(InsufficientMemory) as refused:
        plan_engine(of, settings(**given), device)
    return refused.value


@pytest.mark.parametrize(
    ("memory", "given"),
    [
        (15_360, {}), (15_360, {"max_model_len": 131_072}), (23_028, {"max_model_len": 131_072}),
        (15_360, {"utilization": 0.3}), (46_068, {"utilization": 0.2, "strategy": "ExtraBuffer"}),
        (1_024, {"state_dtype": "float32"}),
    ],
)  # fmt: skip
def test_a_refusal_names_the_smallest_size_that_holds_the_engine(memory: int, given: dict[str, Any]) -> None:
    refused = refusal(NANO, Device("cuda", memory * MIB), **given)

    assert refused.sizes is not None
    assert refused.sizes.smallest is not None
    assert binary_size(refused.sizes.smallest) in str(refused)
    plan_engine(NANO, settings(**given), Device("cuda", refused.sizes.smallest))
    for size in (size for size in SIZES if size < refused.sizes.smallest):
        refusal(NANO, Device("cuda", size), **given)


@pytest.mark.parametrize("memory", [46_068, 275_040, 300_000])
def test_a_refusal_says_that_no_size_would_do(memory: int) -> None:
    refused = refusal(NANO, Device("cuda", memory * MIB), utilization=0.05)

    assert refused.sizes == FittingSize(None, SIZES[-1])
    assert str(refused) != refused.message


def test_a_refusal_counts_what_others_hold_of_the_gpu_on_larger_ones_too() -> None:
    full = replace(H100, declared=False, free=8 << 30)
    sizes = refusal(NANO, full).sizes
    assert sizes is not None
    assert sizes.smallest == 97_887 * MIB
    others = H100.memory - (8 << 30)
    plan_engine(
        NANO, settings(), Device("cuda", sizes.smallest, declared=False, free=sizes.smallest - others)
    )


@pytest.mark.parametrize("device", [Device("cpu", 8 << 30), Device("cpu", 8 << 30, declared=False)])
def test_without_a_gpu_a_refusal_names_no_size(device: Device) -> None:
    assert refusal(NANO, device).sizes is None


def test_beyond_the_ends_there_is_no_size() -> None:
    largest = plan_engine(NANO, settings(), Device("cuda", 275_040 * MIB))
    assert largest.one_size_up is None
    assert "oneSizeUp" not in largest.to_status()
    assert said(largest.one_size_down)["memory"] == "183359Mi"
    small = plan_engine(model("granite-4.0-h-350m"), settings(), Device("cuda", 15_360 * MIB))
    assert small.one_size_down is None
    assert said(small.one_size_up)["memory"] == "23028Mi"


@pytest.mark.parametrize(
    ("device", "given"),
    [
        (Device("cpu", 64 << 30), {}), (Device("cpu", 64 << 30, declared=False), {}),
        (H100, {"arena_bytes": "8Gi"}),
    ],
)  # fmt: skip
def test_without_a_gpu_and_with_an_arena_in_bytes_no_size_is_told(
    device: Device, given: dict[str, Any]
) -> None:
    made = plan_engine(NANO, settings(**given), device)
    assert (made.one_size_down, made.one_size_up) == (None, None)
    assert {"oneSizeDown", "oneSizeUp"}.isdisjoint(made.to_json())


def test_what_others_hold_of_a_gpu_they_hold_of_the_other_one_too() -> None:
    others = 20 << 30
    made = plan_engine(NANO, settings(), replace(H100, declared=False, free=H100.memory - others))
    larger = Device("cuda", 97_887 * MIB, declared=False, free=97_887 * MIB - others)
    assert said(made.one_size_up) == as_planned(plan_engine(NANO, settings(), larger), "97887Mi")
    smaller = replace(H100, memory=46_068 * MIB, free=46_068 * MIB - others)
    assert said(made.one_size_down) == as_planned(plan_engine(NANO, settings(), smaller), "46068Mi")


def test_another_size_costs_half_a_plan_where_full_precision_is_enough() -> None:
    evaluate.cache_clear()
    plan_engine(NANO, settings(workload_concurrency=16), H100)
    assert evaluate.cache_info().misses == 6 + 3 + 3
