"""The adapters agree with transformers' own classes: parameter counts and today's saved configurations.

Where transformers differs from the code published with a model, the adapters follow the published code:
see test_against_published_code.py.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mamba_planner.families import ModelConfigError, model_config_from_hf
from mamba_planner.model_config import ModelConfig

transformers = pytest.importorskip("transformers")

CONFIGS = Path(__file__).parents[2] / "golden" / "configs"
PUBLISHED = sorted(path.stem for path in CONFIGS.glob("*.json"))

QWEN3_5: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 6,
}  # fmt: skip
TEXT = {"Qwen3_5": "Qwen3_5Text", "Qwen3_5Moe": "Qwen3_5MoeText"}
"""Names of the configurations of text models, if they differ from those of the models."""
SMALL: dict[str, dict[str, Any]] = {
    "NemotronH": {
        "vocab_size": 96, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 8, "intermediate_size": 48, "ssm_state_size": 16, "mamba_num_heads": 8,
        "mamba_head_dim": 8, "n_groups": 2, "moe_intermediate_size": 20, "n_routed_experts": 4,
        "moe_shared_expert_intermediate_size": 24, "moe_latent_size": 12,
        "layers_block_type": ["linear_attention", "mlp", "full_attention", "moe"],
    },
    "Bamba": {
        "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 4, "attn_layer_indices": [2],
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48, "mamba_n_heads": 8,
        "mamba_d_state": 16, "tie_word_embeddings": True,
    },
    "GraniteMoeHybrid": {
        "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 3, "intermediate_size": 20,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "num_attention_heads": 4, "num_key_value_heads": 2, "shared_intermediate_size": 24,
        "mamba_n_heads": 8, "mamba_d_state": 16, "num_local_experts": 4, "mamba_proj_bias": True,
    },
    "FalconH1": {
        "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 48, "mamba_d_ssm": 48, "mamba_n_heads": 6,
        "mamba_d_state": 16, "mamba_rms_norm": True, "projectors_bias": True,
    },
    "Mamba2": {
        "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 8,
        "state_size": 16, "n_groups": 2, "use_bias": True,
    },
    "Qwen3Next": {
        "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48, "linear_key_head_dim": 8,
        "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "moe_intermediate_size": 20, "shared_expert_intermediate_size": 24, "num_experts": 4,
        "num_experts_per_tok": 2,
        "mlp_only_layers": [1],
    },
    "Qwen3_5": QWEN3_5,
    "Lfm2": {
        "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 100, "block_multiple_of": 24, "conv_bias": True,
        "layer_types": ["conv", "full_attention", "conv"], "block_ffn_dim_multiplier": 1.3,
    },
    "Lfm2Moe": {
        "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 100, "moe_intermediate_size": 20, "num_experts": 4,
        "num_experts_per_tok": 2, "num_dense_layers": 1, "conv_L_cache": 4,
        "layer_types": ["conv", "full_attention", "conv"],
    },
    "OlmoHybrid": {
        "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 48, "linear_num_value_heads": 8,
        "linear_num_key_heads": 4, "attention_bias": True, "pad_token_id": 0,
    },
    "KimiLinear": {
        "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 4, "intermediate_size": 48, "moe_intermediate_size": 20, "kv_lora_rank": 12,
        "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 10, "num_local_experts": 4,
        "num_experts_per_tok": 2, "linear_num_heads": 3, "linear_head_dim": 8, "n_shared_experts": 2,
        "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
        "pad_token_id": 0,
    },
    "Zamba2": {
        "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
        "intermediate_size": 48, "n_mamba_heads": 8, "mamba_d_state": 16, "mamba_ngroups": 2,
        "layers_block_type": ["hybrid", "linear_attention", "hybrid", "hybrid"], "num_mem_blocks": 2,
        "adapter_rank": 6, "use_shared_attention_adapter": True, "add_bias_linear": True,
    },
    "Qwen3_5Moe": {
        **{name: value for name, value in QWEN3_5.items() if name != "intermediate_size"},
        "moe_intermediate_size": 20, "shared_expert_intermediate_size": 24, "num_experts": 4,
        "num_experts_per_tok": 2,
    },
}  # fmt: skip


def published(name: str) -> dict[str, Any]:
    return dict(json.loads((CONFIGS / f"{name}.json").read_text()))


def saved(name: str) -> tuple[Any, dict[str, Any]]:
    """Return the transformers configuration and the config.json that it would write."""
    config = getattr(transformers, f"{TEXT.get(name, name)}Config")(**SMALL[name])
    written = json.loads(config.to_json_string(use_diff=True))
    return config, {**written, "architectures": [f"{name}ForCausalLM"]}


@pytest.mark.parametrize("name", SMALL)
def test_the_parameter_count_is_that_of_the_reference_model(name: str) -> None:
    import torch

    config, written = saved(name)
    with torch.device("meta"):
        model = getattr(transformers, f"{name}ForCausalLM")(config)
    assert model_config_from_hf(written).parameters == model.num_parameters()


@pytest.mark.parametrize("name", SMALL)
def test_a_configuration_saved_today_is_read(name: str) -> None:
    config, written = saved(name)
    neutral = model_config_from_hf(written)
    kinds = {"linear_attention": 1, "hybrid": 1, "conv": 1}
    assert neutral.recurrent_layers == sum(kinds.get(kind, 0) for kind in config.layer_types)
    assert neutral.hidden_size == 32
    assert neutral.architecture == f"{name}ForCausalLM"


def of_transformers(config: dict[str, Any]) -> ModelConfig:
    """Read after transformers has filled in what is not said; raises what it raises."""
    fields = {name: value for name, value in config.items() if name != "model_type"}
    filled = transformers.AutoConfig.for_model(config["model_type"], **fields)
    read = model_config_from_hf(
        {**json.loads(filled.to_json_string(use_diff=False)), "model_type": filled.model_type}
    )
    # A hint is what a checkpoint asks for, not what a class assumes.
    asked = {"mamba_ssm_cache_dtype", "mamba_ssm_dtype"} & {*config, *config.get("text_config", {})}
    return read if asked else replace(read, state_dtype_hint=None)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_says_to_us_what_it_says_to_transformers(name: str) -> None:
    config = published(name)
    assert model_config_from_hf(config) == of_transformers(config)


PUBLISHED_OTHERWISE = {"falcon-h1-7b": {"rope_theta"}}
"""Fields whose default in the published class is another than in transformers."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_field_that_is_left_out_is_what_transformers_takes(name: str) -> None:
    """Or refused: what decides shapes is not guessed."""
    config, compared = published(name), 0
    for field in sorted(config.keys() - PUBLISHED_OTHERWISE.get(name, set())):
        without = {key: value for key, value in config.items() if key != field}
        try:
            ours = model_config_from_hf(without)
        except ModelConfigError:
            continue
        try:
            theirs = of_transformers(without)
        except Exception:  # the default does not go with the other fields
            continue
        assert ours == theirs, field
        compared += 1
    assert compared > len(config) // 4


ROTARY = [
    (
        "bamba-9b",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.25}},
    ),
    ("falcon-h1-7b", {"partial_rotary_factor": 0.5}),
    (
        "falcon-h1-7b",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5}},
    ),
    ("granite-4.0-h-tiny", {"position_embedding_type": "rope", "partial_rotary_factor": 0.5}),
    ("qwen3-next-80b-a3b", {"partial_rotary_factor": 0.5}),
]


OLDER_SECTION = [
    ("falcon-h1-7b", {"rope_type": "default", "rope_theta": 5e5}),
    ("qwen3-next-80b-a3b", {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5}),
]


@pytest.mark.parametrize(("name", "section"), OLDER_SECTION)
def test_the_older_section_of_rotary_positions_says_what_the_new_one_says(
    name: str, section: dict[str, Any]
) -> None:
    flat = ("rope_theta", "partial_rotary_factor", "rope_scaling")
    config = {key: value for key, value in published(name).items() if key not in flat}
    ours = model_config_from_hf({**config, "rope_scaling": section})
    assert ours == model_config_from_hf({**config, "rope_parameters": section})
    assert ours == of_transformers({**config, "rope_scaling": section})


@pytest.mark.parametrize(("name", "changes"), ROTARY)
def test_as_much_of_a_head_is_rotated_as_in_transformers(name: str, changes: dict[str, Any]) -> None:
    import torch

    config = {**published(name), **changes}
    ours = model_config_from_hf(config).attention
    assert ours is not None
    small = {"num_hidden_layers": 1, "layer_types": None, "vocab_size": 8, "num_experts": 2}
    if name.startswith("granite"):
        small = {
            "num_hidden_layers": 1,
            "layer_types": ["attention"],
            "vocab_size": 8,
            "num_local_experts": 2,
        }
    fields = {
        key: value for key, value in {**config, **small}.items() if key != "model_type" and value is not None
    }
    theirs = transformers.AutoConfig.for_model(config["model_type"], **fields)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(theirs)
    (inverse,) = (buffer for found, buffer in model.named_buffers() if found.endswith("rotary_emb.inv_freq"))
    assert ours.rotated == 2 * len(inverse)


def test_the_time_step_limit_is_the_one_the_reference_applies() -> None:
    """Mamba2 alone: of Nemotron-H transformers applies another than the code published with the models."""
    import torch

    name = "Mamba2"
    config, written = saved(name)
    with torch.device("meta"):
        model = getattr(transformers, f"{name}ForCausalLM")(config)
    mixer = next(module for module in model.modules() if hasattr(module, "time_step_limit"))
    mamba = model_config_from_hf(written).mamba
    assert mamba is not None
    assert mamba.dt_limit == tuple(mixer.time_step_limit)


def test_the_time_step_limit_of_nemotron_h_is_that_of_its_configuration() -> None:
    config, written = saved("NemotronH")
    assert (written["time_step_min"], tuple(config.time_step_limit)) == (0.001, (0.0, float("inf")))
    mamba = model_config_from_hf(written).mamba
    assert mamba is not None
    assert mamba.dt_limit == (0.0, float("inf"))
