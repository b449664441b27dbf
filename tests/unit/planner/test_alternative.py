"""Strategies that would be better than the current one for other traffic, and by how much."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mamba_planner import Device, InsufficientMemory, Workload, plan_engine
from mamba_planner.engine_plan import best_alternative
from mamba_planner.families import model_config_from_hf
from mamba_settings.engine_settings import EngineSettings
from operator_objects import nano_config

NANO = model_config_from_hf(nano_config(), "nano")
SETTINGS = EngineSettings(model="nano")
GPU = Device("cuda", 40 << 30)
AGENTS = Workload(16_000, 200, 0.9, 8, declared=True, measured=True)
ALIKE = Workload(2048, 256, 0.5, None, declared=True, measured=True)


def test_nothing_is_better_than_what_the_planner_would_choose() -> None:
    planned = plan_engine(NANO, SETTINGS, GPU)

    assert best_alternative(NANO, SETTINGS, GPU, None, ALIKE, planned.strategy, planned.state_dtype) is None


def test_what_is_better_is_what_would_be_planned_for_that_traffic_and_wins_both_ways() -> None:
    planned = plan_engine(NANO, SETTINGS, GPU, workload=AGENTS)
    assert planned.strategy == "ExtraBufferLazy"

    found = best_alternative(NANO, SETTINGS, GPU, None, AGENTS, "NoBuffer", "float32")

    assert found is not None
    assert (found.strategy, found.state_dtype) == (planned.strategy, planned.state_dtype)
    assert 0.2 < found.gain < 0.4
    assert best_alternative(NANO, SETTINGS, GPU, None, AGENTS, found.strategy, found.state_dtype) is None


def test_states_of_another_type_are_a_rival_only_where_they_are_looked_at() -> None:
    crowd = Workload(4000, 300, 0.9, 60, declared=True, measured=True)
    small = Device("cuda", 24 << 30)

    found = best_alternative(NANO, SETTINGS, small, None, crowd, "NoBuffer", "float32")
    assert found is not None
    assert found.state_dtype == "float16"
    assert (
        best_alternative(NANO, SETTINGS, small, None, crowd, "NoBuffer", "float32", state_dtypes=("float32",))
        is None
    )
    fixed = SETTINGS.model_copy(update={"state_dtype": "float32"})
    assert best_alternative(NANO, fixed, small, None, crowd, "NoBuffer", "float32") is None


def test_the_strategy_and_the_traffic_of_the_settings_are_not_looked_at() -> None:
    told = {"strategy": "NoBuffer", "workload_prompt_tokens": 10, "workload_concurrency": 500}
    with_both = SETTINGS.model_copy(update=told)

    assert best_alternative(NANO, with_both, GPU, None, AGENTS, "NoBuffer", "float32") == best_alternative(
        NANO, SETTINGS, GPU, None, AGENTS, "NoBuffer", "float32"
    )


def test_memory_that_does_not_hold_the_weights_has_no_rivals() -> None:
    with pytest.raises(InsufficientMemory):
        best_alternative(NANO, SETTINGS, Device("cuda", 1 << 30), None, AGENTS, "NoBuffer", "float32")


@given(
    prompt=st.integers(1, 60_000), output=st.integers(1, 4000), ratio=st.floats(0, 1),
    concurrency=st.one_of(st.none(), st.integers(1, 300)), memory=st.integers(24, 96),
)  # fmt: skip
def test_what_wins_is_not_won_over_by_what_it_beat(
    prompt: int, output: int, ratio: float, concurrency: int | None, memory: int
) -> None:
    traffic, device = Workload(prompt, output, ratio, concurrency, True, True), Device("cuda", memory << 30)
    for strategy in ("NoBuffer", "ExtraBufferLazy", "ExtraBuffer"):
        found = best_alternative(
            NANO, SETTINGS, device, None, traffic, strategy, "float32", state_dtypes=("float32",)
        )
        if found is not None:
            back = best_alternative(
                NANO, SETTINGS, device, None, traffic, found.strategy, "float32", state_dtypes=("float32",)
            )
            assert back is None
            assert found.gain > -0.011, "a tie is the only way to be chosen with less"
