"""Where transformers differs from the code published with a model, the adapters follow the published code.

What the published code does is in docs/reference/published-numerics.md, with its sources.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from mamba_planner.families import ModelConfigError, model_config_from_hf
from mamba_planner.model_config import AttentionConfig

CONFIGS = Path(__file__).parents[2] / "golden" / "configs"


def published(name: str, **changes: Any) -> dict[str, Any]:
    return {**json.loads((CONFIGS / f"{name}.json").read_text()), **changes}


def without(name: str, *fields: str) -> dict[str, Any]:
    return {key: value for key, value in published(name).items() if key not in fields}


def attention_of(config: dict[str, Any]) -> AttentionConfig:
    attention = model_config_from_hf(config).attention
    assert attention is not None
    return attention


NEMOTRON_H = ("nemotron-h-8b", "nemotron-nano-9b-v2", "nemotron-3-nano-30b-a3b")


@pytest.mark.parametrize("name", NEMOTRON_H)
def test_attention_of_nemotron_h_has_the_biases_that_its_configuration_asks_for(name: str) -> None:
    """In transformers it has none whatever the configuration says."""
    config = published(name, attention_bias=True)
    attention = attention_of(config)
    assert attention.bias
    outputs = (attention.heads + 2 * attention.kv_heads) * attention.head_dim + config["hidden_size"]
    layers = config["hybrid_override_pattern"].count("*")
    more = model_config_from_hf(config).parameters - model_config_from_hf(published(name)).parameters
    assert more == layers * outputs


@pytest.mark.parametrize("name", NEMOTRON_H)
def test_a_pattern_of_another_length_than_the_number_of_layers_is_refused(name: str) -> None:
    """transformers takes the pattern and warns."""
    layers = published(name)["num_hidden_layers"]
    with pytest.raises(ModelConfigError) as refused:
        model_config_from_hf(published(name, num_hidden_layers=layers + 1))
    assert refused.value.field == "num_hidden_layers"
    assert str(layers) in str(refused.value)


def test_attention_of_nemotron_h_that_sees_a_window_only_is_refused() -> None:
    """transformers ignores the window and lets all tokens be seen."""
    with pytest.raises(ModelConfigError) as refused:
        model_config_from_hf(published("nemotron-nano-9b-v2", sliding_window=4096))
    assert refused.value.field == "sliding_window"
    assert attention_of(published("nemotron-nano-9b-v2", sliding_window=None))


def test_the_residual_stream_of_nemotron_h_is_float32_where_its_configuration_asks_for_it() -> None:
    """transformers keeps it in the type of the model whatever the configuration says."""
    assert model_config_from_hf(published("nemotron-h-8b", residual_in_fp32=True)).residual_in_fp32
    assert not model_config_from_hf(published("nemotron-h-8b", residual_in_fp32=False)).residual_in_fp32


def test_the_shared_expert_of_nemotron_h_is_as_wide_as_said_however_many_there_are() -> None:
    """Other servers multiply the width by their number."""
    config = published("nemotron-3-nano-30b-a3b", n_shared_experts=2)
    moe = model_config_from_hf(config).moe
    assert moe is not None
    assert moe.shared_intermediate == config["moe_shared_expert_intermediate_size"]


CONFLICTS = [
    ("n_groups", "mamba_n_groups", 8, 4),
    ("conv_kernel", "mamba_d_conv", 4, 3),
    ("use_conv_bias", "mamba_conv_bias", True, False),
    ("time_step_limit", "mamba_dt_limit", [0.5, 2.0], [0.25, 1.0]),
]


@pytest.mark.parametrize(("wins", "loses", "value", "other"), CONFLICTS)
def test_the_spelling_of_published_nemotron_h_files_wins_over_that_of_the_class(
    wins: str, loses: str, value: Any, other: Any
) -> None:
    """transformers lets the other spelling win."""
    name = "nemotron-nano-9b-v2"
    alone = model_config_from_hf(published(name, **{wins: value}))
    assert model_config_from_hf(published(name, **{wins: value, loses: other})) == alone


@pytest.mark.parametrize(("share", "rotated"), [(None, 64), (0.25, 32), (1.0, 128)])
def test_as_much_of_a_head_of_bamba_is_rotated_as_its_configuration_says(
    share: float | None, rotated: int
) -> None:
    """In transformers it is one half whatever the flat field says."""
    said = {} if share is None else {"partial_rotary_factor": share}
    assert attention_of(published("bamba-9b", **said)).rotated == rotated


@pytest.mark.parametrize("name", ["bamba-9b", "granite-4.0-h-tiny", "falcon-h1-7b"])
def test_a_limit_of_step_sizes_is_read_where_the_released_class_has_no_field_for_it(name: str) -> None:
    """Such a configuration was written for transformers, which reads it."""
    mamba = model_config_from_hf(published(name, time_step_limit=[0.001, 0.1])).mamba
    assert mamba is not None
    assert mamba.dt_limit == (0.001, 0.1)


def test_the_base_of_falcon_h1_that_leaves_it_out_is_that_of_the_published_class() -> None:
    """In transformers it is 10,000."""
    assert attention_of(without("falcon-h1-7b", "rope_theta")).rope_theta == 100_000.0


def test_the_inner_width_of_falcon_h1_that_leaves_it_out_is_that_of_the_published_class() -> None:
    """null stands for the expanded hidden size."""
    config = without("falcon-h1-7b", "mamba_d_ssm", "mamba_d_head")
    absent = model_config_from_hf({**config, "mamba_n_heads": 16}).mamba
    null = model_config_from_hf({**config, "mamba_n_heads": 16, "mamba_d_ssm": None}).mamba
    assert absent is not None
    assert null is not None
    assert (absent.inner, null.inner) == (1024, 2 * config["hidden_size"])
