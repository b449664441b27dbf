"""Expected savings and throughput: the laws that make the order of candidates worth something."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mamba_planner import Constraints, Workload
from mamba_planner.candidates import NO_BUFFER_SHARE, StepTraffic, expected_saved, expected_throughput
from mamba_planner.families import model_config_from_hf
from mamba_planner.model_config import ModelConfig
from mamba_planner.strategy import reservation

CONFIGS = Path(__file__).parents[2] / "golden" / "configs"
CHAT = Workload(4000, 500, 0.5, declared=True)
PLENTY = 10_000


def model(name: str) -> ModelConfig:
    return model_config_from_hf(json.loads((CONFIGS / f"{name}.json").read_text()))


DENSE = model("nemotron-nano-9b-v2")
SPARSE = model("nemotron-3-nano-30b-a3b")
LOAD = StepTraffic(running=16, state=140 << 20, kv=16_384, weights=17 << 30)


def saved(
    strategy: str, workload: Workload = CHAT, *, running: int = 10, paths: int = PLENTY, **fixed: object
) -> float:
    reserved = reservation(strategy, overlap=True)
    return expected_saved(reserved, Constraints(**fixed), workload, running, paths)  # type: ignore[arg-type]


# --- savings -------------------------------------------------------------------------------------------


def test_with_plenty_of_checkpoints_all_that_is_shared_is_saved_but_the_tail() -> None:
    tail = 0.5 * 4000 - saved("ExtraBuffer") * 4000
    assert 0 < tail <= 256
    kept = NO_BUFFER_SHARE * (0.5 * 4000 - 500) / 4000
    assert saved("NoBuffer") == pytest.approx(kept, rel=0.01)


def test_the_more_a_strategy_promises_the_more_it_saves() -> None:
    for paths in (5, 10, 20, PLENTY):
        order = [saved(each, paths=paths) for each in ("NoBuffer", "ExtraBufferLazy", "ExtraBuffer")]
        assert order == sorted(order)
    assert saved("ExtraBufferLazy", paths=5) < saved("ExtraBuffer", paths=5)
    assert saved("ExtraBufferLazy") == saved("ExtraBuffer")


def test_room_for_all_that_come_back_saves_half_and_each_more_saves_less() -> None:
    whole = saved("ExtraBuffer", paths=10**9)
    assert saved("ExtraBuffer", running=10, paths=10) == pytest.approx(whole / 2)
    assert saved("ExtraBuffer", running=10, paths=20) == pytest.approx(whole * 2 / 3)
    assert saved("ExtraBuffer", running=10, paths=5) == pytest.approx(whole / 3)
    assert saved("ExtraBuffer", paths=0) == 0


def test_who_waits_for_a_place_comes_back_too() -> None:
    # Of 20 declared 10 run: the other 10 wait, and 20 think.
    declared = replace(CHAT, concurrency=20)
    assert saved("ExtraBuffer", declared, running=10, paths=30) == pytest.approx(
        saved("ExtraBuffer", running=10, paths=10)
    )


def test_nothing_is_saved_where_nothing_runs_is_shared_or_may_be_cached() -> None:
    assert saved("ExtraBuffer", running=0) == 0
    assert saved("ExtraBuffer", replace(CHAT, shared_prefix_ratio=0.0)) == 0
    assert saved("ExtraBuffer", prefix_caching=False) == 0


def test_an_answer_longer_than_what_is_shared_leaves_nothing_without_a_buffer() -> None:
    assert saved("NoBuffer", Workload(1000, 600, 0.5)) == 0
    assert saved("ExtraBuffer", Workload(1000, 600, 0.5)) > 0.3


def test_a_wider_interval_saves_less_of_long_answers() -> None:
    long = replace(CHAT, output_tokens=2000)
    fine, coarse = (saved("ExtraBuffer", long, track_interval=each) for each in (64, 1024))
    assert fine > coarse


# --- throughput ----------------------------------------------------------------------------------------


def speed(
    load: StepTraffic = LOAD, workload: Workload = CHAT, share: float = 0.0, of: ModelConfig = DENSE
) -> float:
    return expected_throughput(of, workload, load, share)


def test_nothing_running_is_no_throughput() -> None:
    assert speed(replace(LOAD, running=0)) == 0


@pytest.mark.parametrize("of", [DENSE, SPARSE], ids=["dense", "sparse"])
@given(running=st.integers(1, 500), share=st.floats(0, 0.95))
@settings(max_examples=40, deadline=None)
def test_more_at_once_and_more_saved_is_never_slower(of: ModelConfig, running: int, share: float) -> None:
    now = speed(replace(LOAD, running=running), share=share, of=of)
    assert speed(replace(LOAD, running=running + 1), share=share, of=of) > now
    assert speed(replace(LOAD, running=running), share=share + 0.05, of=of) > now


def test_a_batch_gains_less_and_less() -> None:
    speeds = [speed(replace(LOAD, running=running)) for running in (1, 2, 4, 8, 16, 32)]
    gains = [right / left for left, right in pairwise(speeds)]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] < 2


@pytest.mark.parametrize("name", ["state", "kv", "weights"])
def test_more_bytes_to_move_is_slower(name: str) -> None:
    heavier = replace(LOAD, **{name: 2 * getattr(LOAD, name)})
    assert speed(heavier) < speed()


def test_half_as_wide_states_help_most_where_many_run() -> None:
    def gain(running: int) -> float:
        wide = replace(LOAD, running=running)
        return speed(replace(wide, state=wide.state // 2)) / speed(wide)

    assert 1 < gain(1) < gain(64)


def test_long_answers_are_slower_to_make_than_long_prompts() -> None:
    assert speed(workload=Workload(4000, 100)) > speed(workload=Workload(100, 4000))


def test_of_a_sparse_model_a_single_token_reads_few_experts_and_a_large_batch_nearly_all() -> None:
    """Compare costs: a token of a large batch is cheap, and a step costs more until all experts are read."""
    light = StepTraffic(1, 0, 0, 60 << 30)
    answer = Workload(1, 1000)

    def bytes_a_step(running: int) -> float:
        return answer.tokens / speed(replace(light, running=running), answer, of=SPARSE) * running / 1000

    assert bytes_a_step(1) < 0.2 * light.weights
    assert bytes_a_step(8) > 2 * bytes_a_step(1)
    assert 0.85 * light.weights < bytes_a_step(500) < 1.3 * light.weights
