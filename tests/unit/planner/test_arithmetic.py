"""Bytes of states, KV and weights: every row of the table of shapes, and tensor parallelism."""

import json
from pathlib import Path

import pytest

from mamba_planner.arithmetic import (
    active_parameters,
    kv_bytes_per_token,
    layer_state,
    slab_bytes,
    state_bytes,
    weights_bytes,
)
from mamba_planner.errors import UnusableInput
from mamba_planner.families import load_model_config, model_config_from_hf
from mamba_planner.model_config import ModelConfig

CONFIGS = Path(__file__).parents[2] / "golden" / "configs"


def model(name: str) -> ModelConfig:
    return model_config_from_hf(json.loads((CONFIGS / f"{name}.json").read_text()))


# name, recurrent and attention layers, width, heads x head width x state, groups, chunk,
# MB of one state with fp32 and with 16-bit SSM part and bf16 window, KV bytes per token in bf16.
SHAPES = [
    ("nemotron-h-8b", 24, 4, 4096, (128, 64, 128, 8), 128, 102.1, 51.8, 16_384),
    ("nemotron-nano-9b-v2", 27, 4, 4480, (128, 80, 128, 8), 128, 143.5, 72.8, 16_384),
    ("nemotron-3-nano-30b-a3b", 23, 6, 2688, (64, 64, 128, 8), 128, 49.1, 25.0, 6_144),
    ("granite-4.0-h-small", 36, 4, 4096, (128, 64, 128, 1), 256, 152.8, 77.3, 16_384),
    ("granite-4.0-h-tiny", 36, 4, 1536, (48, 64, 128, 1), 256, 57.3, 29.0, 8_192),
    ("granite-4.0-h-350m", 28, 4, 768, (48, 32, 128, 1), 256, 22.3, 11.3, 4_096),
    ("falcon-h1-7b", 44, 44, 3072, (24, 128, 256, 1), 128, 139.4, 70.2, 45_056),
    ("bamba-9b", 29, 3, 4096, (128, 64, 128, 1), 256, 123.1, 62.3, 12_288),
    ("mamba2-2.7b", 64, 0, 2560, (80, 64, 128, 1), 256, 169.8, 86.0, 0),
    ("zamba2-7b", 81, 13, 3584, (112, 64, 64, 2), 256, 152.2, 77.9, 372_736),
    ("codestral-mamba-7b", 64, 0, 4096, (128, 64, 128, 8), 256, 272.4, 138.1, 0),
]


@pytest.mark.parametrize(
    ("name", "recurrent", "attention", "width", "mixer", "chunk", "full", "half", "kv"), SHAPES
)
def test_the_table_of_shapes_holds(
    name: str,
    recurrent: int,
    attention: int,
    width: int,
    mixer: tuple[int, int, int, int],
    chunk: int,
    full: float,
    half: float,
    kv: int,
) -> None:
    config = model(name)
    assert (config.recurrent_layers, config.attention_layers) == (recurrent, attention)
    assert config.hidden_size == width
    assert config.mamba is not None
    heads = config.mamba
    assert (heads.heads, heads.head_dim, heads.state_size, heads.groups) == mixer
    assert heads.chunk_size == chunk
    assert round(state_bytes(config, "float32", "bfloat16").total / 1e6, 1) == full
    assert round(state_bytes(config, "float16", "bfloat16").total / 1e6, 1) == pytest.approx(half, abs=0.051)
    assert kv_bytes_per_token(config, "bfloat16") == kv


def test_the_row_of_the_gated_delta_model_holds() -> None:
    config = model("qwen3-next-80b-a3b")
    assert (config.recurrent_layers, config.attention_layers, config.hidden_size) == (36, 12, 2048)
    delta = config.gated_delta
    assert delta is not None
    assert (delta.value_heads, delta.key_heads, delta.value_dim, delta.key_dim) == (32, 16, 128, 128)
    assert round(state_bytes(config, "float32", "bfloat16").total / 1e6, 1) == 77.3
    assert round(state_bytes(config, "float16", "bfloat16").total / 1e6, 1) == 39.5
    assert kv_bytes_per_token(config, "bfloat16") == 24_576


def test_one_layer_holds_the_window_and_the_recurrent_part() -> None:
    layer = layer_state(model("nemotron-nano-9b-v2"))
    assert layer.ssm * 4 == 5 << 20
    assert layer.conv * 2 == 72 << 10


def test_the_window_is_kept_in_the_activation_type_and_the_rest_in_the_state_type() -> None:
    config = model("nemotron-nano-9b-v2")
    wide, narrow = state_bytes(config, "float32", "float32"), state_bytes(config, "float16", "bfloat16")
    assert wide.conv == 2 * narrow.conv
    assert wide.ssm == 2 * narrow.ssm


@pytest.mark.parametrize("ways", [2, 4, 8])
def test_a_state_is_split_evenly_while_there_are_groups_for_all(ways: int) -> None:
    config = model("nemotron-nano-9b-v2")
    assert state_bytes(config, "float32", "bfloat16", ways).total * ways == (
        state_bytes(config, "float32", "bfloat16").total
    )


def test_groups_are_replicated_when_there_are_fewer_than_devices() -> None:
    config = model("granite-4.0-h-small")
    layer, split = layer_state(config), layer_state(config, 4)
    assert split.ssm * 4 == layer.ssm
    # 8192 channels of x split in four, 2 * 128 of the only group's B and C on each device.
    assert split.conv == 3 * (8192 // 4 + 2 * 128)


def test_key_value_heads_are_replicated_when_there_are_fewer_than_devices() -> None:
    config = model("granite-4.0-h-tiny")
    assert kv_bytes_per_token(config, "bfloat16", 4) * 4 == kv_bytes_per_token(config, "bfloat16")
    assert kv_bytes_per_token(config, "bfloat16", 8) == kv_bytes_per_token(config, "bfloat16", 4)


def test_latent_attention_holds_one_row_for_keys_and_values_of_all_heads() -> None:
    assert kv_bytes_per_token(model("kimi-linear-48b-a3b"), "bfloat16") == 7 * (512 + 64) * 2


@pytest.mark.parametrize("ways", [0, 3, 7])
def test_devices_that_do_not_divide_the_heads_are_refused_with_the_number(ways: int) -> None:
    with pytest.raises(UnusableInput, match=rf"tensorParallel {ways} .*128"):
        layer_state(model("nemotron-nano-9b-v2"), ways)


def test_devices_that_are_no_multiple_of_the_replicated_heads_are_refused() -> None:
    with pytest.raises(UnusableInput, match="2 key-value heads"):
        kv_bytes_per_token(model("falcon-h1-7b"), "bfloat16", 3)


def test_weights_follow_the_parameter_count_and_the_devices() -> None:
    config = model("nemotron-nano-9b-v2")
    assert weights_bytes(config, "bfloat16") / 1e9 == pytest.approx(17.8, abs=0.05)
    assert weights_bytes(config, "float32") == 2 * weights_bytes(config, "bfloat16")
    assert weights_bytes(config, "bfloat16", quantization="int8") / 1e9 == pytest.approx(9.4, abs=0.1)
    # 4.5 bits a weight, and 8.5 in embedding and head: 2 * 131,072 * 4,480 weights.
    four_bits = weights_bytes(config, "bfloat16", quantization="int4", on_cpu=True)
    assert four_bits / 1e9 == pytest.approx(8.889 * 18 / 32 + 1.1744 * 16 / 32, abs=0.01)
    # On a GPU these two stay in bfloat16.
    four_bits = weights_bytes(config, "bfloat16", quantization="int4")
    assert four_bits / 1e9 == pytest.approx((8.889 - 1.1744) * 18 / 32 + 1.1744 * 2, abs=0.01)
    assert weights_bytes(config, "bfloat16", 4) * 4 - weights_bytes(config, "bfloat16") < 4


def test_active_parameters_of_a_sparse_model_match_its_card() -> None:
    always, experts = active_parameters(model("nemotron-3-nano-30b-a3b"))
    assert (always + experts * 6 / 128) / 1e9 == pytest.approx(3.5, abs=0.15)
    assert active_parameters(model("bamba-9b")) == (model("bamba-9b").parameters, 0)


@pytest.mark.parametrize(
    ("state", "page", "slab"),
    [(1000, 300, 1200), (900, 300, 900), (0, 300, 300), (1000, 0, 1024), (1024, 0, 1024)],
)
def test_a_slab_is_one_state_rounded_up_to_whole_pages(state: int, page: int, slab: int) -> None:
    assert slab_bytes(state, page) == slab


def test_a_directory_gives_the_same_bytes_as_the_dictionary(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((CONFIGS / "bamba-9b.json").read_text())
    assert state_bytes(load_model_config(tmp_path), "float32", "bfloat16") == (
        state_bytes(model("bamba-9b"), "float32", "bfloat16")
    )
