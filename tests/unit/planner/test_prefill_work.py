"""Work of a prompt: linear but for attention, and additive over its pieces."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mamba_planner.arithmetic import attention_ratio, prefill_work
from mamba_planner.families import model_config_from_hf

depths = st.integers(0, 1 << 20)
CONFIGS = Path(__file__).parents[2] / "golden" / "configs"


def ratio_of(name: str) -> float:
    return attention_ratio(model_config_from_hf(json.loads((CONFIGS / f"{name}.json").read_text())))


@given(depths, depths, depths, st.floats(0, 1e-3))
def test_the_pieces_of_a_prompt_are_as_much_work_as_the_whole(
    one: int, two: int, three: int, ratio: float
) -> None:
    first, middle, last = sorted((one, two, three))
    parts = prefill_work(first, middle, ratio) + prefill_work(middle, last, ratio)
    assert parts == pytest.approx(prefill_work(first, last, ratio))


def test_a_model_without_attention_computes_every_token_alike() -> None:
    assert ratio_of("mamba2-2.7b") == 0
    assert prefill_work(100, 300, 0.0) == 200


def test_attention_costs_a_token_as_much_as_all_else_where_the_arithmetic_says() -> None:
    # Nano 9B: 4 attention layers of 40 heads x 128, 8.9 billion parameters.
    ratio = ratio_of("nemotron-nano-9b-v2")
    assert 1 / ratio == pytest.approx(2 * 8.89e9 / (4 * 4 * 40 * 128), rel=0.01)
    depth = round(1 / ratio)
    assert prefill_work(depth, depth + 1, ratio) == pytest.approx(2, rel=1e-3)


def test_of_experts_only_those_that_a_token_takes_count() -> None:
    # A third of the parameters of the 9B model is active: attention weighs the more.
    assert ratio_of("nemotron-3-nano-30b-a3b") > ratio_of("nemotron-nano-9b-v2")
