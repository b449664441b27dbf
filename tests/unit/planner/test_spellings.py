"""One quantity, several names: all spellings give one configuration, and wrong ones are named."""

import json
from pathlib import Path
from typing import Any

import pytest

from mamba_planner.errors import MissingField, UnknownArchitecture, UnreadableConfig, WrongField
from mamba_planner.families import ModelConfigError, load_model_config, model_config_from_hf

CONFIGS = Path(__file__).parents[2] / "golden" / "configs"


def published(name: str) -> dict[str, Any]:
    return dict(json.loads((CONFIGS / f"{name}.json").read_text()))


LIST_WORDS = {"M": "linear_attention", "-": "mlp", "*": "full_attention", "E": "moe"}


@pytest.mark.parametrize("field", ["layers_block_type", "layer_types"])
@pytest.mark.parametrize("name", ["nemotron-nano-9b-v2", "nemotron-3-nano-30b-a3b"])
def test_a_layer_list_reads_like_the_pattern(name: str, field: str) -> None:
    old = published(name)
    new = dict(old)
    new[field] = [LIST_WORDS[letter] for letter in new.pop("hybrid_override_pattern")]
    assert model_config_from_hf(new) == model_config_from_hf(old)


RENAMES = [
    ("nemotron-nano-9b-v2", {"mamba_num_heads": "mamba_n_heads", "ssm_state_size": "mamba_d_state"}),
    ("nemotron-nano-9b-v2", {"n_groups": "mamba_n_groups", "conv_kernel": "mamba_d_conv"}),
    ("nemotron-nano-9b-v2", {"head_dim": "attention_head_dim", "chunk_size": "mamba_chunk_size"}),
    ("nemotron-nano-9b-v2", {"torch_dtype": "dtype", "layer_norm_epsilon": "rms_norm_eps"}),
    ("granite-4.0-h-tiny", {"layer_types": "layers_block_type"}),
    ("nemotron-3-nano-30b-a3b", {"n_routed_experts": "num_local_experts"}),
]


@pytest.mark.parametrize(("name", "renames"), RENAMES)
def test_other_names_of_a_field_give_the_same_model(name: str, renames: dict[str, str]) -> None:
    config = published(name)
    renamed = {renames.get(key, key): value for key, value in config.items()}
    assert renamed != config
    assert model_config_from_hf(renamed) == model_config_from_hf(config)


def test_indices_and_a_list_give_the_same_bamba() -> None:
    by_index = published("bamba-9b")
    by_list = dict(by_index)
    attention = by_list.pop("attn_layer_indices")
    by_list["layers_block_type"] = ["attention" if i in attention else "mamba" for i in range(32)]
    assert model_config_from_hf(by_list) == model_config_from_hf(by_index)


def test_the_nested_text_configuration_of_a_multimodal_model_is_used() -> None:
    inner = published("nemotron-nano-9b-v2")
    del inner["torch_dtype"]
    outer = {"model_type": "nemotron_vl", "architectures": ["X"], "text_config": inner, "dtype": "bfloat16"}
    assert model_config_from_hf(outer) == model_config_from_hf(published("nemotron-nano-9b-v2"))


@pytest.mark.parametrize(("outer", "inner"), [(True, False), (False, True)])
def test_a_multimodal_model_decides_whether_its_head_is_the_embedding(outer: bool, inner: bool) -> None:
    """The head belongs to the whole model, and a text model inside it has none."""
    whole = published("qwen3.6-27b")
    whole["text_config"]["tie_word_embeddings"] = inner
    assert model_config_from_hf({**whole, "tie_word_embeddings": outer}).tie_embeddings is outer
    del whole["tie_word_embeddings"]
    assert not model_config_from_hf(whole).tie_embeddings
    assert model_config_from_hf({**whole, "model_type": "of_others"}).tie_embeddings is inner


def test_a_multimodal_model_that_names_the_architecture_of_its_text_model_is_read_through_it() -> None:
    whole = published("qwen3.6-35b-a3b")
    renamed = {**whole, "architectures": ["Qwen3_5MoeForCausalLM"]}
    assert model_config_from_hf(renamed) == model_config_from_hf(whole)


@pytest.mark.parametrize("name", ["qwen3.5-0.8b", "qwen3.6-27b", "qwen3.6-35b-a3b"])
def test_the_text_model_alone_is_that_of_the_multimodal_model(name: str) -> None:
    whole = published(name)
    (architecture,) = whole["architectures"]
    text = {
        **whole["text_config"],
        "architectures": [architecture.replace("ConditionalGeneration", "CausalLM")],
    }
    assert model_config_from_hf(text) == model_config_from_hf(whole)
    # Text models were also saved with the type of the whole.
    assert model_config_from_hf({**text, "model_type": whole["model_type"]}) == model_config_from_hf(whole)


def test_the_architecture_decides_when_the_model_type_is_absent() -> None:
    config = published("falcon-h1-7b")
    del config["model_type"]
    assert model_config_from_hf(config).family == "falcon_h1"


@pytest.mark.parametrize("infinity", [float("inf"), "Infinity", {"__float__": "Infinity"}])
def test_every_spelling_of_an_unlimited_time_step_is_read(infinity: Any) -> None:
    config = {**published("mamba2-2.7b"), "time_step_limit": [0.0, infinity]}
    mamba = model_config_from_hf(config).mamba
    assert mamba is not None
    assert mamba.dt_limit == (0.0, float("inf"))


def test_auto_head_width_is_the_inner_width_over_the_heads() -> None:
    config = {**published("granite-4.0-h-tiny"), "mamba_d_head": "auto"}
    assert model_config_from_hf(config) == model_config_from_hf(published("granite-4.0-h-tiny"))


def test_new_rope_parameters_win_over_the_flat_ones() -> None:
    config = {
        **published("bamba-9b"),
        "rope_parameters": {"rope_theta": 5e5, "partial_rotary_factor": 0.25, "rope_type": "default"},
    }
    attention = model_config_from_hf(config).attention
    assert attention is not None
    assert (attention.rope_theta, attention.rotary_fraction) == (5e5, 0.25)


def test_an_unknown_model_is_refused_with_the_list_of_known_ones() -> None:
    with pytest.raises(UnknownArchitecture) as caught:
        model_config_from_hf({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, "m/config.json")
    text = str(caught.value)
    assert text.startswith("m/config.json: ")
    assert "'llama'" in text
    assert "nemotron_h" in text
    assert "qwen3_next" in text
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("model_type", "architecture", "nearest"),
    [
        ("lfm3", "Lfm3ForCausalLM", "lfm2"),
        ("qwen4_exp", "Qwen4ExpForCausalLM", "qwen3_next"),
        ("zamba3", "Zamba3ForCausalLM", "zamba2"),
        ("olmo3", "Olmo3ForCausalLM", "olmo_hybrid"),
    ],
)
def test_the_refusal_of_an_unknown_model_names_the_nearest_served_family(
    model_type: str | None, architecture: str | None, nearest: str
) -> None:
    with pytest.raises(UnknownArchitecture, match=f"nearest served family is {nearest} "):
        model_config_from_hf({"model_type": model_type, "architectures": [architecture]})


NEEDED = [
    ("nemotron-nano-9b-v2", "hidden_size"),
    ("nemotron-nano-9b-v2", "mamba_num_heads"),
    ("nemotron-nano-9b-v2", "hybrid_override_pattern"),
    ("nemotron-nano-9b-v2", "ssm_state_size"),
    ("nemotron-3-nano-30b-a3b", "moe_intermediate_size"),
    ("bamba-9b", "num_hidden_layers"),
    ("bamba-9b", "mamba_d_state"),
    ("granite-4.0-h-small", "layer_types"),
    ("granite-4.0-h-small", "attention_multiplier"),
    ("falcon-h1-7b", "mamba_n_groups"),
    ("mamba2-2.7b", "num_heads"),
    ("qwen3-next-80b-a3b", "linear_num_value_heads"),
]


@pytest.mark.parametrize(("name", "field"), NEEDED)
def test_a_missing_field_is_named_with_its_source(name: str, field: str) -> None:
    config = published(name)
    del config[field]
    with pytest.raises(MissingField) as caught:
        model_config_from_hf(config, "weights/config.json")
    assert caught.value.field == field
    assert str(caught.value).startswith(f"weights/config.json: field {field} is missing")


WRONG = [
    ("nemotron-nano-9b-v2", "hidden_size", "big", "expected an integer"),
    ("nemotron-nano-9b-v2", "mamba_num_heads", 0, "must be at least 1"),
    ("nemotron-nano-9b-v2", "hybrid_override_pattern", "MX", "letter 1 is 'X'"),
    ("nemotron-nano-9b-v2", "layer_types", ["mamba", "conv"], "layer 1 is 'conv'"),
    ("nemotron-nano-9b-v2", "n_groups", 7, "must divide 128 heads"),
    ("nemotron-nano-9b-v2", "num_key_value_heads", 3, "must divide the 40 attention heads"),
    ("nemotron-nano-9b-v2", "torch_dtype", "int8", "supported: float32, bfloat16, float16"),
    ("nemotron-nano-9b-v2", "use_bias", "no", "expected true or false"),
    ("nemotron-nano-9b-v2", "eos_token_id", "end", "expected token ids"),
    ("bamba-9b", "attn_layer_indices", [99], "99 is not a layer number below 32"),
    ("bamba-9b", "mamba_d_head", 32, "must be the inner width 8192"),
    ("bamba-9b", "rope_scaling", {"rope_type": "spiral", "factor": 4}, "'spiral' is not supported"),
    ("granite-4.0-h-small", "logits_scaling", 0, "must not be 0"),
    ("granite-4.0-h-small", "residual_multiplier", 0, "must not be 0"),
    ("falcon-h1-7b", "ssm_multipliers", [1.0], "expected 5 numbers, found 1"),
    ("mamba2-2.7b", "num_heads", 64, "must be expand x hidden_size = 5120"),
    ("mamba2-2.7b", "time_step_limit", ["soon", 1], "expected a number"),
    ("qwen3-next-80b-a3b", "linear_num_key_heads", 12, "must divide the 32 value heads"),
    ("zamba2-1.2b", "layers_block_type", ["mamba", "moe"], "layer 1 is 'moe'"),
    ("zamba2-1.2b", "num_key_value_heads", 8, "8 with use_shared_attention_adapter is not supported"),
    ("zamba2-1.2b", "attention_head_dim", 64, "64 is not supported; supported: 128"),
    ("kimi-linear-48b-a3b", "q_lora_rank", 1536, "1536 is not supported; supported: null"),
    ("kimi-linear-48b-a3b", "mla_use_nope", False, "false is not supported"),
    ("kimi-linear-48b-a3b", "moe_router_activation_func", "softmax", "'softmax' is not supported"),
    ("kimi-linear-48b-a3b", "moe_layer_freq", 2, "2 is not supported; supported: 1"),
    ("kimi-linear-48b-a3b", "linear_attn_config", {"kda_layers": [1], "full_attn_layers": [3]}, "once"),
    ("kimi-linear-48b-a3b", "linear_attn_config", {"use_full_rank_gate": True}, "is not supported"),
    ("zamba2-7b", "use_long_context", True, "true is not supported; supported: false"),
]


@pytest.mark.parametrize(("name", "field", "value", "words"), WRONG)
def test_a_wrong_value_is_named_with_what_is_accepted(name: str, field: str, value: Any, words: str) -> None:
    config = {**published(name), field: value}
    with pytest.raises(WrongField, match=r"config\.json: ") as caught:
        model_config_from_hf(config)
    assert words in str(caught.value)
    assert caught.value.field is not None


@pytest.mark.parametrize(
    ("text", "words"),
    [(None, "not found"), ("{", "cannot be read"), ("[1]", "must hold a JSON object")],
)
def test_an_unusable_file_is_named(tmp_path: Path, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(UnreadableConfig, match=words) as caught:
        load_model_config(tmp_path)
    assert str(tmp_path / "config.json") in str(caught.value)
    assert isinstance(caught.value, ModelConfigError)
