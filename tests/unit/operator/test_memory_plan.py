"""Verdicts of the planner for any input of a user: always one, never a crash, never a stall."""

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mamba_api.v1alpha1 import MambaDeployment
from mamba_operator.memory.verdict import (
    DoesNotFit,
    Fits,
    MemoryVerdict,
    ModelNotServed,
    PlannerInput,
    SpecInvalid,
    Unknown,
    plan_memory,
    planner_input,
)
from mamba_operator.objects.recorded_status import with_readable_status
from mamba_planner.arithmetic import WeightsSize
from model_configs import unserved_config
from operator_objects import CONFIGS, fitting_owner, nano_config, owner

FAMILIES = [
    "bamba-9b", "codestral-mamba-7b", "falcon-h1-7b", "granite-4.0-h-tiny", "nemotron-nano-9b-v2",
    "qwen3-next-80b-a3b",
]  # fmt: skip


def config(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    return found


def judged(node: int | None = None, **spec: Any) -> MemoryVerdict:
    of = with_readable_status(fitting_owner(**spec))
    return plan_memory(MambaDeployment.model_validate(of, by_alias=True, by_name=False), node)


def of_config(config: dict[str, Any]) -> MemoryVerdict:
    """Plan mode: there any family the planner knows is planned, served or not."""
    return judged(model={"uri": "hf://a/b", "config": config}, mode="Plan")


ODD: list[Any] = [
    None, 0, -1, 1, 2**63, 10**30, "x", "", [], {}, True, 1.5, float("nan"), float("inf"), [1], ["x"], [[1]],
    {"a": 1},
]  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
@given(st.data())
@settings(max_examples=40, deadline=None)
def test_a_configuration_with_one_odd_field_gets_a_verdict(name: str, data: st.DataObject) -> None:
    given_ = config(name)
    field = data.draw(st.sampled_from(sorted(given_)))
    given_[field] = data.draw(st.sampled_from(ODD))

    verdict = of_config(given_)

    assert isinstance(verdict, Fits | DoesNotFit | SpecInvalid)
    if isinstance(verdict, SpecInvalid):
        assert verdict.message.startswith("spec.model.config")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_number_of_layers_beyond_reason_is_refused_without_making_them(name: str) -> None:
    given_ = {**config(name), "num_hidden_layers": 2**33, "n_layer": 2**33}
    for listed in ("layers_block_type", "layer_types", "hybrid_override_pattern"):
        given_.pop(listed, None)
    tracemalloc.start()
    try:
        verdict = of_config(given_)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert isinstance(verdict, SpecInvalid)
    assert most < 2**24


@pytest.mark.parametrize(
    "broken",
    [
        {"model_type": ["nemotron_h"], "architectures": None}, {"model_type": {"a": 1}, "architectures": []},
        {"model_type": None, "architectures": 5}, {"model_type": 5, "architectures": {}},
        {"model_type": None, "architectures": [["NemotronHForCausalLM"]]},
    ],
    ids=str,
)  # fmt: skip
def test_a_model_that_says_nothing_of_its_kind_lists_the_kinds_there_are(broken: dict[str, Any]) -> None:
    verdict = of_config({**nano_config(), **broken})

    assert isinstance(verdict, SpecInvalid)
    assert "is not supported; supported: nemotron_h" in verdict.message


@pytest.mark.parametrize("name", ["", "text_config"])
def test_an_empty_configuration_is_told_apart_from_none(name: str) -> None:
    verdict = of_config({name: {}} if name else {})

    assert isinstance(verdict, SpecInvalid)


@given(
    st.sampled_from(["0", "1m", "1", "16Gi", "17.8Gi", "24Gi", "80Gi", "1Ti"]),
    st.floats(0.001, 1.0),
    st.sampled_from([None, "0", "1m", "1Gi", "40Gi"]),
    st.sampled_from(["Auto", "NoBuffer", "ExtraBuffer", "ExtraBufferLazy"]),
    st.sampled_from(["Auto", "float32", "float16"]),
)
@settings(max_examples=40, deadline=None)
def test_any_budget_gets_a_plan_or_the_numbers(
    memory: str, utilization: float, arena: str | None, strategy: str, dtype: str
) -> None:
    budget = {"deviceMemory": memory, "utilization": utilization, **({"arena": arena} if arena else {})}

    verdict = judged(memory=budget, stateCache={"strategy": strategy, "stateDtype": dtype})

    assert isinstance(verdict, Fits | DoesNotFit)
    if isinstance(verdict, Fits):
        plan = verdict.plan
        assert strategy in ("Auto", plan.strategy)
        assert dtype in ("Auto", plan.state_dtype)
        assert plan.max_running_requests >= 1
        assert plan.slots >= plan.slots_per_sequence
        assert str(plan.max_running_requests) in verdict.message
    else:
        assert any(unit in verdict.message for unit in ("Gi", "Mi", "Ki"))


UNSERVED = unserved_config()


def test_a_model_no_engine_serves_is_refused_before_anything_starts() -> None:
    verdict = judged(model={"uri": "hf://a/b", "config": UNSERVED})

    assert isinstance(verdict, ModelNotServed)
    assert "cannot serve" in verdict.message


def test_a_model_no_engine_serves_is_refused_though_its_gpu_is_unknown() -> None:
    assert isinstance(judged(model={"uri": "hf://a/b", "config": UNSERVED}, memory={}), ModelNotServed)


def test_plan_mode_shows_the_plan_of_a_model_no_engine_serves_and_says_so() -> None:
    verdict = of_config(UNSERVED)

    assert isinstance(verdict, Fits)
    assert "cannot serve" in verdict.message


def test_a_model_that_is_served_is_not_said_to_be_none() -> None:
    verdict = judged()

    assert isinstance(verdict, Fits)
    assert "cannot serve" not in verdict.message


def test_the_memory_in_the_spec_wins_over_the_label_of_the_node() -> None:
    small, large = 1 << 30, 80 << 30

    assert isinstance(judged(small, memory={"deviceMemory": "80Gi"}), Fits)
    assert isinstance(judged(large, memory={"deviceMemory": "1Gi"}), DoesNotFit)
    assert isinstance(judged(large, memory={}), Fits)


def test_memory_that_is_too_small_is_told_with_the_gpu_size_that_would_do() -> None:
    by_spec, by_label = judged(0, memory={"deviceMemory": "16Gi"}), judged(15_360 << 20, memory={})
    hopeless = judged(0, memory={"deviceMemory": "16Gi", "utilization": 0.1})

    for verdict in (by_spec, by_label, hopeless):
        assert isinstance(verdict, DoesNotFit)
    assert all("22.5Gi" in verdict.message for verdict in (by_spec, by_label))  # type: ignore[union-attr]
    assert "268.6Gi" in hopeless.message  # type: ignore[union-attr]


def test_the_status_tells_one_gpu_size_down_and_up_of_the_memory_that_is_planned_for() -> None:
    by_spec, by_label = judged(1 << 30), judged(46_068 << 20, memory={})

    assert isinstance(by_spec, Fits)
    assert isinstance(by_label, Fits)
    for verdict, down, up in ((by_spec, "46068Mi", "97887Mi"), (by_label, "40Gi", "81559Mi")):
        sizes = (verdict.plan.one_size_down, verdict.plan.one_size_up)
        for size, memory in zip(sizes, (down, up), strict=True):
            there = judged(memory={"deviceMemory": memory})
            assert isinstance(there, Fits)
            assert size is not None
            assert (size.memory, size.fits, size.reason) == (memory, True, None)
            assert (size.strategy, size.state_dtype) == (there.plan.strategy, there.plan.state_dtype)
            assert (size.slots, size.pages) == (there.plan.slots, there.plan.pages)
            assert size.max_running_requests == there.plan.max_running_requests


@pytest.mark.parametrize(
    "spec",
    [
        {"memory": {"deviceMemory": "80Gi", "arena": "20Gi"}},
        {"resources": {"gpus": 0}, "memory": {"deviceMemory": "80Gi"}},
    ],
)
def test_an_arena_in_bytes_and_a_machine_without_a_gpu_have_no_other_sizes(spec: dict[str, Any]) -> None:
    verdict = judged(**spec)

    assert isinstance(verdict, Fits)
    assert {"oneSizeDown", "oneSizeUp"}.isdisjoint(verdict.plan.manifest())


def test_the_configuration_in_the_spec_wins_over_the_one_that_ships() -> None:
    of = MambaDeployment.model_validate(with_readable_status(fitting_owner()), by_alias=True, by_name=False)

    assert plan_memory(of, None, {"model_type": "nonsense"}) == plan_memory(of, None)


@pytest.mark.parametrize(
    ("spec", "advice"),
    [
        ({"memory": {}}, "set spec.memory.deviceMemory"),
        (
            {"memory": {}, "resources": {"gpus": 0}},
            "set spec.resources.memory, spec.memory.deviceMemory or spec",
        ),
    ],
)
def test_an_unknown_memory_says_where_to_write_it(spec: dict[str, Any], advice: str) -> None:
    verdict = judged(**spec)

    assert isinstance(verdict, Unknown)
    assert advice in verdict.message


def test_a_machine_without_a_gpu_is_planned_by_its_arena_or_its_memory() -> None:
    plain = owner(resources={"gpus": 0, "memory": "80Gi"}, model={"uri": "hf://a/b", "config": nano_config()})
    by_memory = plan_memory(
        MambaDeployment.model_validate(with_readable_status(plain), by_alias=True, by_name=False), 1 << 30
    )
    by_arena = judged(resources={"gpus": 0}, memory={"arena": "20Gi"})

    assert isinstance(by_memory, Fits)
    assert isinstance(by_arena, Fits)
    assert by_memory.plan.slots > by_arena.plan.slots


def test_weights_stored_wider_than_the_configuration_says_are_counted_as_engines_load_them() -> None:
    of = with_readable_status(fitting_owner(model={"uri": "hf://a/b", "config": nano_config()}))
    deployment = MambaDeployment.model_validate(of, by_alias=True, by_name=False)
    stored = WeightsSize(4 * 1_000_000, 1_000_000, 990_000)
    given = planner_input(deployment, 80 << 30, weights=stored)
    assert isinstance(given, PlannerInput)
    assert (given.model.dtype, given.weights_bytes) == ("bfloat16", 2 * 1_000_000)
