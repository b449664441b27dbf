"""What one GPU size up and down would change: the plan of that memory; nothing where memory decides none."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mamba_planner import Device, DoesNotFit, MemoryPlan, plan_engine
from mamba_planner.candidates import evaluate
from mamba_planner.engine_settings import EngineSettings
from mamba_planner.families import model_config_from_hf
from mamba_planner.gpu_sizes import MIB
from mamba_planner.model_config import ModelConfig
from mamba_planner.other_size import OtherSize

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
    """A plan, as another one tells of it."""
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
    with pytest.raises(DoesNotFit) as refused:
        plan_engine(NANO, asked, small)
    size = plan_engine(NANO, asked, Device("cuda", 23_034 * MIB)).one_size_down
    assert said(size) == {"memory": "15Gi", "fits": False, "reason": str(refused.value)}


def test_a_size_whose_arena_is_too_small_for_one_sequence_has_that_reason() -> None:
    asked, small = settings(max_model_len=131_072), Device("cuda", 23_028 * MIB)
    with pytest.raises(DoesNotFit, match="one sequence of 131072 tokens needs") as refused:
        plan_engine(NANO, asked, small)
    size = plan_engine(NANO, asked, Device("cuda", 32_607 * MIB)).one_size_down
    assert said(size)["reason"] == str(refused.value)


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
        (Device("cpu", 64 << 30), {}), (Device("cpu", 64 << 30, told=False), {}),
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
    made = plan_engine(NANO, settings(), replace(H100, told=False, free=H100.memory - others))
    larger = Device("cuda", 97_887 * MIB, told=False, free=97_887 * MIB - others)
    assert said(made.one_size_up) == as_planned(plan_engine(NANO, settings(), larger), "97887Mi")
    smaller = replace(H100, memory=46_068 * MIB, free=46_068 * MIB - others)
    assert said(made.one_size_down) == as_planned(plan_engine(NANO, settings(), smaller), "46068Mi")


def test_another_size_costs_half_a_plan_where_full_precision_is_enough() -> None:
    evaluate.cache_clear()
    plan_engine(NANO, settings(workload_concurrency=16), H100)
    assert evaluate.cache_info().misses == 6 + 3 + 3
