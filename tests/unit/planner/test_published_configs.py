"""The adapters on configurations as they are published: shapes, layer lists, sizes."""

import json
from pathlib import Path
from typing import Any

import pytest

from mamba_planner.families import load_model_config, model_config_from_hf

CONFIGS = Path(__file__).parents[2] / "golden" / "configs"


def published(name: str) -> dict[str, Any]:
    return dict(json.loads((CONFIGS / f"{name}.json").read_text()))


# name, recurrent layers, attention layers, parameters in billions as the model card says.
CARDS = [
    ("nemotron-h-8b", 24, 4, 8.1),
    ("nemotron-nano-9b-v2", 27, 4, 8.89),
    ("nemotron-3-nano-30b-a3b", 23, 6, 31.6),
    # Without the head for drafts that the card counts, too.
    ("nemotron-3-super-120b-a12b", 40, 8, 120.7),
    ("granite-4.0-h-small", 36, 4, 32.2),
    ("granite-4.0-h-tiny", 36, 4, 6.94),
    ("granite-4.0-h-micro", 36, 4, 3.19),
    ("granite-4.0-h-350m", 28, 4, 0.34),
    ("falcon-h1-7b", 44, 44, 7.59),
    ("bamba-9b", 29, 3, 9.78),
    ("mamba2-2.7b", 64, 0, 2.7),
    ("codestral-mamba-7b", 64, 0, 7.29),
    ("qwen3-next-80b-a3b", 36, 12, 79.7),
    ("lfm2-1.2b", 10, 6, 1.17),
    ("kimi-linear-48b-a3b", 20, 7, 49.1),
    ("zamba2-1.2b", 38, 6, 1.215),
    ("zamba2-2.7b", 54, 9, 2.66),
    ("zamba2-7b", 81, 13, 7.36),
    ("lfm2-8b-a1b", 18, 6, 8.34),
    # The text models alone, without the vision towers and the heads for drafts that the cards count, too.
    ("qwen3.5-0.8b", 18, 6, 0.752),
    ("qwen3.6-27b", 48, 16, 26.9),
    ("qwen3.6-35b-a3b", 30, 10, 34.7),
]


@pytest.mark.parametrize(("name", "recurrent", "attention", "billions"), CARDS)
def test_layers_and_parameters_match_the_model_card(
    name: str, recurrent: int, attention: int, billions: float
) -> None:
    config = model_config_from_hf(published(name))
    assert (config.recurrent_layers, config.attention_layers) == (recurrent, attention)
    assert config.parameters == pytest.approx(billions * 1e9, rel=0.005)


def test_every_published_configuration_has_a_row_here() -> None:
    assert {path.stem for path in CONFIGS.glob("*.json")} == {name for name, *_ in CARDS}


def test_the_nemotron_pattern_becomes_blocks_in_order() -> None:
    config = model_config_from_hf(published("nemotron-nano-9b-v2"))
    assert config.layers[:8] == ("mamba", "mlp", "mamba", "mlp", "mamba", "mlp", "mamba", "mamba")
    assert config.layers.index("attention") == 14
    assert len(config.layers) == 56
    assert config.checkpoint_layers == ()


def test_nemotron_attention_has_no_position_and_takes_its_declared_head_width() -> None:
    attention = model_config_from_hf(published("nemotron-nano-9b-v2")).attention
    assert attention is not None
    assert attention.rope_theta is None
    assert (attention.heads, attention.kv_heads, attention.head_dim) == (40, 8, 128)
    assert attention.scale == pytest.approx(128**-0.5)


def test_the_older_name_of_the_attention_head_width_is_read() -> None:
    attention = model_config_from_hf(published("nemotron-h-8b")).attention
    assert attention is not None
    assert attention.head_dim == 128


def test_nemotron_moe_keeps_router_and_shared_expert() -> None:
    config = model_config_from_hf(published("nemotron-3-nano-30b-a3b"))
    assert config.moe is not None
    assert config.mlp is None
    assert (config.moe.experts, config.moe.experts_per_token, config.moe.scoring) == (128, 6, "sigmoid")
    assert (config.moe.shared_intermediate, config.moe.scale) == (3712, 2.5)
    assert config.eos_token_ids == (2, 11)
    assert config.state_dtype_hint == "float32"


def test_mixer_and_feed_forward_of_one_layer_are_two_blocks_of_that_layer() -> None:
    config = model_config_from_hf(published("bamba-9b"))
    assert config.layers[:2] == ("mamba", "mlp")
    assert config.layers[18:20] == ("attention", "mlp")
    assert config.checkpoint_layers[18:20] == (9, 9)
    assert len(config.checkpoint_layers) == len(config.layers) == 64


def test_bamba_rotates_half_of_each_head() -> None:
    attention = model_config_from_hf(published("bamba-9b")).attention
    assert attention is not None
    assert (attention.head_dim, attention.rope_theta, attention.rotary_fraction) == (128, 10_000.0, 0.5)


def test_granite_inverts_its_logit_divisor_and_has_no_rope() -> None:
    config = model_config_from_hf(published("granite-4.0-h-small"))
    assert config.multipliers.logits == pytest.approx(1 / 8)
    assert config.multipliers.residual == pytest.approx(0.22)
    assert config.attention is not None
    assert config.attention.rope_theta is None
    assert config.attention.scale == pytest.approx(0.0078125)


def test_granite_without_experts_is_dense() -> None:
    config = model_config_from_hf(published("granite-4.0-h-micro"))
    assert config.moe is None
    assert config.mlp is not None
    assert config.mlp.intermediate == 8192
    assert config.mlp.gated


def test_falcon_runs_both_mixers_in_one_block() -> None:
    config = model_config_from_hf(published("falcon-h1-7b"))
    assert config.layers[:4] == ("mamba_attention", "mlp", "mamba_attention", "mlp")
    assert config.mamba is not None
    assert config.mamba.inner == 3072
    assert not config.mamba.gated_norm
    assert config.multipliers.ssm[3] == 0.5


def test_pure_mamba_has_no_attention_and_no_limit_of_its_own() -> None:
    config = model_config_from_hf(published("mamba2-2.7b"))
    assert config.attention is None
    assert config.attention_layers == 0
    assert config.max_position == 1 << 20


def test_qwen_places_full_attention_every_fourth_layer() -> None:
    config = model_config_from_hf(published("qwen3-next-80b-a3b"))
    mixers = config.layers[::2]
    assert [index for index, kind in enumerate(mixers) if kind == "attention"] == list(range(3, 48, 4))
    assert config.gated_delta is not None
    assert config.gated_delta.conv_dim == 8192


def test_a_directory_is_read_through_its_config_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(published("bamba-9b")))
    assert load_model_config(tmp_path) == model_config_from_hf(published("bamba-9b"))
