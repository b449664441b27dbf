"""Text of planner, operator, local mode and engine about a model that cannot be served: the same for all."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mamba_planner.families import model_config_from_hf
from mamba_planner.families.registry import ACTIVATIONS_SERVED, EXPERT_ACTIVATIONS_SERVED, why_not_served
from mamba_planner.model_config import ModelConfig
from mamba_server.model.layers.mlp import ACTIVATIONS
from mamba_server.model.layers.moe import ACTIVATIONS as EXPERT_ACTIVATIONS

CONFIGS = Path(__file__).parents[2] / "golden" / "configs"
ALL = sorted(path.stem for path in CONFIGS.glob("*.json"))


def model(name: str, **changes: Any) -> ModelConfig:
    config: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    return model_config_from_hf({**config, **changes})


@pytest.mark.parametrize("name", ALL)
def test_every_family_that_is_read_is_served(name: str) -> None:
    assert why_not_served(model(name)) is None


def test_a_family_that_the_engine_does_not_know_is_refused_by_its_name() -> None:
    unknown = replace(model("falcon-h1-7b"), family="zamba3")
    assert "zamba3" in (why_not_served(unknown) or "")


def test_an_activation_without_a_kernel_is_refused() -> None:
    nano = model("nemotron-nano-9b-v2")
    assert nano.mlp is not None

    assert why_not_served(replace(nano, mlp=replace(nano.mlp, activation="mish"))) is not None


CONVOLVED = [
    ("nemotron-nano-9b-v2", "mamba_hidden_act"),
    ("granite-4.0-h-micro", "hidden_act"),
    ("bamba-9b", "hidden_act"),
    ("falcon-h1-7b", "hidden_act"),
    ("mamba2-2.7b", "hidden_act"),
    ("qwen3-next-80b-a3b", "hidden_act"),
]


@pytest.mark.parametrize(("name", "field"), CONVOLVED)
def test_a_mixer_with_another_activation_behind_its_convolution_is_refused(name: str, field: str) -> None:
    """The kernels know silu alone; any other would be a silent wrong answer."""
    assert why_not_served(model(name, **{field: "silu"})) is None
    why = why_not_served(model(name, **{field: "gelu"})) or ""
    assert "convolution" in why
    assert "gelu" in why


QUANTIZED: list[tuple[dict[str, Any], str]] = [
    ({"quantization_config": {"quant_method": "fp8", "fmt": "e5m2"}}, "fp8"),
    ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}}, "W4A8_AWQ"),
    ({"quantization_config": {"quant_method": "gptq", "bits": 3, "desc_act": True}}, "gptq with 3 bits"),
    ({"quantization_config": {"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}}, "marlin"),
    ({"quantization_config": {"quant_method": "awq", "bits": 4, "version": "gemv"}}, "gemv"),
    ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}}, "64 x 64"),
    ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, "bitsandbytes"),
    ({"quantization_config": {"load_in_8bit": True}}, "quantized"),
    (
        {"compression_config": {"quant_method": "compressed-tensors", "format": "float-quantized"}},
        "compressed",
    ),
    (
        {
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {"weights": {"num_bits": 8, "type": "float"}},
                    "group_1": {"weights": {"num_bits": 4, "type": "int"}},
                },
            }
        },
        "compressed",
    ),
]
READ: list[dict[str, Any]] = [
    {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]},
    {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]},
    {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "tensor"}},
    }},
]  # fmt: skip


@pytest.mark.parametrize("section", READ, ids=lambda section: str(section["quant_method"]))
@pytest.mark.parametrize("name", ["granite-4.0-h-small", "nemotron-3-nano-30b-a3b", "qwen3-next-80b-a3b"])
def test_weights_of_fp8_are_read_as_the_numbers_that_they_stand_for(
    name: str, section: dict[str, Any]
) -> None:
    assert model(name, quantization_config=section) == model(name)


@pytest.mark.parametrize(("changes", "word"), QUANTIZED)
@pytest.mark.parametrize("name", ["granite-4.0-h-small", "nemotron-3-nano-30b-a3b", "qwen3-next-80b-a3b"])
def test_quantized_weights_are_refused_by_the_name_of_their_method(
    name: str, changes: dict[str, Any], word: str
) -> None:
    why = why_not_served(model(name, **changes)) or ""
    assert word in why
    assert "bfloat16" in why


def test_quantized_weights_of_a_multimodal_model_are_refused_too() -> None:
    inner = json.loads((CONFIGS / "nemotron-nano-9b-v2.json").read_text())
    outer = {"model_type": "nemotron_vl", "text_config": inner, **QUANTIZED[0][0]}
    assert "fp8" in (why_not_served(model_config_from_hf(outer)) or "")


@pytest.mark.parametrize("nothing", [None, {}])
def test_a_configuration_that_says_nothing_of_quantization_is_not_quantized(nothing: Any) -> None:
    plain = model("granite-4.0-h-small", quantization_config=nothing, compression_config=nothing)
    assert plain == model("granite-4.0-h-small")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"activation": "gelu"}, "gelu"),
        ({"latent": 64, "shared_gate": True}, "latent"),
        ({"bias": True}, "bias"),
    ],
)
def test_experts_that_no_kernel_computes_are_refused(changes: dict[str, Any], word: str) -> None:
    nano = model("nemotron-3-nano-30b-a3b")
    assert nano.moe is not None

    assert word in (why_not_served(replace(nano, moe=replace(nano.moe, **changes))) or "")


def test_an_odd_number_of_rotated_elements_is_refused() -> None:
    bamba = model("bamba-9b")
    assert bamba.attention is not None

    odd = replace(bamba, attention=replace(bamba.attention, head_dim=66))
    assert "33 elements" in (why_not_served(odd) or "")


def test_the_activations_of_experts_are_those_the_layers_have() -> None:
    served = {(gated, name) for gated, names in EXPERT_ACTIVATIONS_SERVED.items() for name in names}
    assert served == set(EXPERT_ACTIVATIONS)


def test_the_activations_are_those_the_layers_have() -> None:
    assert set(ACTIVATIONS_SERVED) == set(ACTIVATIONS)
