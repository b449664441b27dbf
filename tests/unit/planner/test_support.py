"""What planner, operator, local mode and engine say about a model that no engine serves: the same, once."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mamba_planner.families import model_config_from_hf
from mamba_planner.families.support import ACTIVATIONS_SERVED, EXPERT_ACTIVATIONS_SERVED, why_not_served
from mamba_planner.model_config import ModelConfig
from mamba_server.model.layers.mlp import ACTIVATIONS
from mamba_server.model.layers.moe import ACTIVATIONS as EXPERT_ACTIVATIONS

CONFIGS = Path(__file__).parents[2] / "golden" / "configs"
SERVED = {
    "codestral-mamba-7b", "granite-4.0-h-350m", "granite-4.0-h-micro", "granite-4.0-h-small",
    "granite-4.0-h-tiny", "mamba2-2.7b",
    "nemotron-3-nano-30b-a3b", "nemotron-h-8b", "nemotron-nano-9b-v2",
}  # fmt: skip
ALL = sorted(path.stem for path in CONFIGS.glob("*.json"))


def model(name: str) -> ModelConfig:
    config: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    return model_config_from_hf(config)


@pytest.mark.parametrize("name", ALL)
def test_some_families_are_served_and_no_other(name: str) -> None:
    assert (why_not_served(model(name)) is None) == (name in SERVED)


@pytest.mark.parametrize(
    ("name", "word"),
    [("bamba-9b", "bamba"), ("falcon-h1-7b", "falcon_h1"), ("qwen3-next-80b-a3b", "qwen3_next")],
)
def test_the_words_name_what_is_missing(name: str, word: str) -> None:
    why = why_not_served(model(name))

    assert why is not None
    assert word in why


def test_an_activation_without_a_kernel_is_refused() -> None:
    nano = model("nemotron-nano-9b-v2")
    assert nano.mlp is not None

    assert why_not_served(replace(nano, mlp=replace(nano.mlp, activation="mish"))) is not None


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"activation": "gelu"}, "gelu"), ({"latent": 64}, "latent"), ({"bias": True}, "bias")],
)
def test_experts_that_no_kernel_computes_are_refused(changes: dict[str, Any], word: str) -> None:
    nano = model("nemotron-3-nano-30b-a3b")
    assert nano.moe is not None

    assert word in (why_not_served(replace(nano, moe=replace(nano.moe, **changes))) or "")


def test_rotary_positions_are_refused() -> None:
    granite = model("granite-4.0-h-micro")
    assert granite.attention is not None

    rotary = replace(granite, attention=replace(granite.attention, rope_theta=10_000.0))
    assert "rotary" in (why_not_served(rotary) or "")


def test_the_activations_of_experts_are_those_the_layers_have() -> None:
    served = {(gated, name) for gated, names in EXPERT_ACTIVATIONS_SERVED.items() for name in names}
    assert served == set(EXPERT_ACTIVATIONS)


def test_the_activations_are_those_the_layers_have() -> None:
    assert set(ACTIVATIONS_SERVED) == set(ACTIVATIONS)
