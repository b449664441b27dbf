"""What planner, operator, local mode and engine say about a model that no engine serves: the same, once."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mamba_planner.families import model_config_from_hf
from mamba_planner.families.support import ACTIVATIONS_SERVED, why_not_served
from mamba_planner.model_config import ModelConfig
from mamba_server.model.layers.mlp import ACTIVATIONS

CONFIGS = Path(__file__).parents[2] / "golden" / "configs"
SERVED = {"nemotron-h-8b", "nemotron-nano-9b-v2"}
ALL = sorted(path.stem for path in CONFIGS.glob("*.json"))


def model(name: str) -> ModelConfig:
    config: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    return model_config_from_hf(config)


@pytest.mark.parametrize("name", ALL)
def test_dense_nemotron_models_are_served_and_no_other(name: str) -> None:
    assert (why_not_served(model(name)) is None) == (name in SERVED)


@pytest.mark.parametrize(
    ("name", "word"), [("bamba-9b", "bamba"), ("nemotron-3-nano-30b-a3b", "moe"), ("mamba2-2.7b", "mamba2")]
)
def test_the_words_name_what_is_missing(name: str, word: str) -> None:
    why = why_not_served(model(name))

    assert why is not None
    assert word in why


def test_an_activation_without_a_kernel_is_refused() -> None:
    nano = model("nemotron-nano-9b-v2")
    assert nano.mlp is not None

    assert why_not_served(replace(nano, mlp=replace(nano.mlp, activation="mish"))) is not None


def test_the_activations_are_those_the_layers_have() -> None:
    assert set(ACTIVATIONS_SERVED) == set(ACTIVATIONS)
