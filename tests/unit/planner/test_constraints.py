"""Constraints of the user: an impossible one is refused by name, and a workload is cut to what fits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mamba_api.v1alpha1 import MambaDeployment, StateCache
from mamba_planner import BudgetError, Constraints, UnusableInput, Workload
from mamba_planner.engine_plan import plan_engine
from mamba_planner.families import model_config_from_hf
from mamba_planner.memory import Device
from mamba_planner.model_config import ModelConfig
from mamba_settings.engine_settings import EngineSettings
from mamba_settings.spec_settings import engine_settings


@pytest.mark.parametrize(
    ("interval", "page", "works"), [(250, 16, 240), (8, 16, 16), (1, 1024, 1024), (257, 16, 256)]
)
def test_the_interval_that_is_named_as_an_example_works(interval: int, page: int, works: int) -> None:
    with pytest.raises(UnusableInput, match=rf"\b{page}\b.*\b{works}$"):
        Constraints(track_interval=interval, page_size=page)
    assert Constraints(track_interval=works, page_size=page).track_interval == works


@pytest.mark.parametrize("share", [float("nan"), float("inf"), -0.1, 1.0000001])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(UnusableInput, match="must be above 0 and at most 1"):
        Constraints(utilization=share)


def test_a_whole_device_may_be_used() -> None:
    assert Constraints(utilization=1.0).utilization == 1.0


@pytest.mark.parametrize("length", [1, 0, -5])
def test_a_length_without_room_for_a_prompt_and_an_answer_is_refused(length: int) -> None:
    with pytest.raises(UnusableInput, match=f"max_model_len {length} "):
        Constraints(max_model_len=length)
    assert Constraints(max_model_len=2).max_model_len == 2


def test_what_settings_carry_is_checked_as_what_is_given() -> None:
    with pytest.raises(UnusableInput, match="track_interval 100"):
        Constraints.of(EngineSettings(model="m", track_interval=100))
    with pytest.raises(UnusableInput, match="max_model_len 1"):
        Constraints.of(EngineSettings(model="m", max_model_len=1))


def test_every_refusal_of_the_planner_is_an_invalid_input_to_the_command_line_and_the_operator() -> None:
    with pytest.raises(BudgetError) as caught:
        Constraints(utilization=2)
    assert (caught.value.exit_code, caught.value.condition_reason) == (2, "InvalidSpec")


# --- workload ------------------------------------------------------------------------------------------

workloads = st.builds(
    Workload,
    prompt_tokens=st.integers(1, 10**6),
    output_tokens=st.integers(1, 10**6),
    shared_prefix_ratio=st.floats(0, 1),
    concurrency=st.none() | st.integers(1, 100),
    declared=st.booleans(),
)


@given(workloads, st.integers(2, 10**6))
def test_a_workload_within_a_length_fits_it_and_is_cut_no_more_than_that_needs(
    workload: Workload, longest: int
) -> None:
    cut = workload.within(longest)
    assert cut.prompt_tokens >= 1
    assert cut.output_tokens >= 1
    assert cut.tokens == min(workload.tokens, longest)
    assert cut.output_tokens in (workload.output_tokens, longest - 1)
    assert (cut.shared_prefix_ratio, cut.concurrency, cut.declared) == (
        workload.shared_prefix_ratio, workload.concurrency, workload.declared,
    )  # fmt: skip


@given(workloads, st.integers(2, 10**6))
def test_cutting_twice_is_cutting_once(workload: Workload, longest: int) -> None:
    once = workload.within(longest)
    assert once.within(longest) == once


def test_the_prompt_gives_way_before_the_output() -> None:
    assert Workload(1000, 200).within(300) == Workload(100, 200)
    assert Workload(1000, 200).within(100) == Workload(1, 99)
    assert Workload(1000, 200).within(5000) == Workload(1000, 200)


# --- from a spec ---------------------------------------------------------------------------------------


def settings_of(**spec: Any) -> EngineSettings:
    body = {"metadata": {"name": "one"}, "spec": {"model": {"uri": "file:///m"}, **spec}}
    return engine_settings(MambaDeployment.model_validate(body))


def constraints_of(**spec: Any) -> Constraints:
    return Constraints.of(settings_of(**spec))


@pytest.mark.parametrize(
    ("section", "field", "value", "name"),
    [
        ("engine", "pageSize", 64, "page_size"),
        ("engine", "chunkedPrefillTokens", 512, "chunked_prefill_tokens"),
        ("engine", "overlapSchedule", False, "overlap"),
        ("stateCache", "trackInterval", 512, "track_interval"),
        ("stateCache", "maxCheckpointsPerPath", 9, "max_checkpoints_per_path"),
        ("stateCache", "prefixCaching", False, "prefix_caching"),
        ("memory", "utilization", 0.5, "utilization"),
    ],
)
def test_a_field_of_the_spec_reaches_the_planner_under_its_name(
    section: str, field: str, value: Any, name: str
) -> None:
    changed = constraints_of(**{section: {field: value}})
    assert getattr(changed, name) == value != getattr(Constraints(), name)
    plain = constraints_of()
    # Who asks for a number of tokens and for no time gets no bound on the time.
    beside = {"chunked_prefill_tokens": {"step_time"}}.get(name, set())
    differing = {each for each in plain.__slots__ if getattr(plain, each) != getattr(changed, each)}
    assert differing == {name} | beside


@pytest.mark.parametrize(
    ("wanted", "cuda", "cpu"), [(None, True, False), (True, True, True), (False, False, False)]
)
def test_who_leaves_overlap_open_gets_it_on_a_gpu_alone(wanted: bool | None, cuda: bool, cpu: bool) -> None:
    engine = {} if wanted is None else {"overlapSchedule": wanted}
    constraints = constraints_of(engine=engine)
    assert (constraints.overlaps("cuda"), constraints.overlaps("cpu")) == (cuda, cpu)


def test_a_spec_and_the_settings_of_its_engine_mean_the_same_to_the_planner() -> None:
    assert constraints_of(stateCache={"strategy": "NoBuffer"}, memory={"arena": "1Gi"}) == Constraints.of(
        EngineSettings(model="m", strategy="NoBuffer", arena_bytes="1Gi")
    )


def test_a_spec_that_cannot_be_planned_is_refused_as_settings_are() -> None:
    with pytest.raises(UnusableInput, match="max_model_len 1 "):
        constraints_of(model={"uri": "file:///m", "maxModelLen": 1})


def test_every_field_of_the_cache_in_the_spec_is_a_setting_of_the_same_name_and_default() -> None:
    names = set(StateCache.model_fields)
    assert names <= set(EngineSettings.model_fields)
    for name in names - {"state_dtype"}:
        assert EngineSettings.model_fields[name].default == StateCache.model_fields[name].default, name
    assert settings_of().document().items() >= {"track_interval": 256, "state_dtype": "auto"}.items()


def test_a_workload_is_declared_only_where_the_spec_has_one() -> None:
    assert settings_of().workload is None
    assert Workload.of(settings_of()) == Workload()
    workload = Workload.of(settings_of(workload={"promptTokens": 10, "outputTokens": 20}))
    assert (workload.prompt_tokens, workload.output_tokens, workload.declared) == (10, 20, True)
    assert workload.concurrency is None


def published_model(name: str) -> ModelConfig:
    return model_config_from_hf(json.loads(Path(f"libs/mamba_planner/published/{name}.json").read_text()))


def test_pages_of_fp8_are_refused_where_there_are_none() -> None:
    gpu = Device("cuda", 80 << 30)
    for name, page_size, says in (
        ("mamba2-2.7b", 16, "no attention and so no pages: set it to auto"),
        (
            "kimi-linear-48b-a3b",
            2,
            "pages of 2 tokens of this model, which have .* bytes: set page_size to a",
        ),
    ):
        settings = EngineSettings(model="m", kv_cache_dtype="fp8_e4m3", page_size=page_size)
        with pytest.raises(UnusableInput, match=says):
            plan_engine(published_model(name), settings, gpu)


def test_pages_of_fp8_hold_nearly_twice_the_tokens_in_the_same_memory() -> None:
    model, gpu = published_model("qwen3.6-27b"), Device("cuda", 80 << 30)
    wide, narrow = (
        plan_engine(model, EngineSettings(model="m", kv_cache_dtype=each), gpu)
        for each in ("auto", "fp8_e4m3")
    )
    attention = model.attention
    assert attention is not None
    ratio = 2 * attention.head_dim / (attention.head_dim + 1)
    assert wide.page_bytes == ratio * narrow.page_bytes
    assert narrow.kv_bytes_per_token * 16 == narrow.page_bytes
    assert narrow.max_running_requests > 1.3 * wide.max_running_requests
    assert f"so that the same memory holds {ratio:.2f} times the tokens" in narrow.notes[-1]
    assert narrow.to_json()["kvCacheDtype"] == "fp8_e4m3"
