"""Random checkpoints of each family that is served, as transformers writes them, with tokenizer and template.

For tests that load a whole model: small enough to run in seconds, with weights large enough that a mistake
anywhere moves the logits.
"""

import json
from pathlib import Path
from typing import Any

import torch

from testmodels.tokenizer_files import SPECIAL, write_tokenizer

VOCAB = 256 + len(SPECIAL) + 5
"""Bytes, special tokens, and a few ids without text, as real vocabularies have them."""
SMALL: dict[str, Any] = {
    "model_type": "nemotron_h",
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "hybrid_override_pattern": "M-M*-M",
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 80,
    "ssm_state_size": 16,
    "mamba_num_heads": 8,
    "mamba_head_dim": 12,
    "n_groups": 2,
    "chunk_size": 32,
    "conv_kernel": 4,
    "max_position_embeddings": 2048,
    "pad_token_id": 256,
    "bos_token_id": 257,
    "eos_token_id": 258,
    "layer_norm_epsilon": 1e-5,
}
SMALL_GRANITE: dict[str, Any] = {
    "model_type": "granitemoehybrid",
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "layer_types": ["mamba", "mamba", "attention", "mamba"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "shared_intermediate_size": 80,
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "mamba_d_state": 16,
    "mamba_n_heads": 8,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 32,
    "mamba_d_conv": 4,
    "position_embedding_type": "nope",
    "embedding_multiplier": 0.6,
    "logits_scaling": 2.5,
    "residual_multiplier": 1.3,
    "attention_multiplier": 0.35,
    "tie_word_embeddings": True,
    "max_position_embeddings": 2048,
    "pad_token_id": 256,
    "bos_token_id": 257,
    "eos_token_id": 258,
    "rms_norm_eps": 1e-5,
}
SMALL_QWEN3_NEXT: dict[str, Any] = {
    "model_type": "qwen3_next",
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 80,
    "linear_num_value_heads": 6,
    "linear_num_key_heads": 3,
    "linear_value_head_dim": 12,
    "linear_key_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
    "mlp_only_layers": [1],
    "tie_word_embeddings": False,
    "max_position_embeddings": 2048,
    "pad_token_id": 256,
    "bos_token_id": 257,
    "eos_token_id": 258,
}
SMALL_QWEN3_5: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000.0,
        "partial_rotary_factor": 0.5,
        "mrope_interleaved": True,
        "mrope_section": [3, 3, 2],
    },
    "intermediate_size": 80,
    "linear_num_value_heads": 6,
    "linear_num_key_heads": 2,
    "linear_value_head_dim": 12,
    "linear_key_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "tie_word_embeddings": False,
    "max_position_embeddings": 2048,
    "pad_token_id": 256,
    "bos_token_id": 257,
    "eos_token_id": 258,
}
SMALL_QWEN3_5_MOE: dict[str, Any] = {
    **{name: value for name, value in SMALL_QWEN3_5.items() if name != "intermediate_size"},
    "model_type": "qwen3_5_moe_text",
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
}
LATENT_EXPERTS: dict[str, Any] = {
    "hybrid_override_pattern": "ME*EM",
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 104,
    "moe_latent_size": 20,
    "routed_scaling_factor": 5.0,
}
"""Fields with which a Nemotron-H has experts of a latent width, as Nemotron 3 Super has."""
SMALL_OLMO_HYBRID: dict[str, Any] = {
    "model_type": "olmo_hybrid",
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 80,
    "linear_num_value_heads": 6,
    "linear_num_key_heads": 3,
    "linear_value_head_dim": 24,
    "linear_key_head_dim": 12,
    "linear_conv_kernel_dim": 4,
    "tie_word_embeddings": False,
    "max_position_embeddings": 2048,
    "pad_token_id": 256,
    "bos_token_id": 257,
    "eos_token_id": 258,
}
SMALL_LFM2: dict[str, Any] = {
    "model_type": "lfm2",
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "num_hidden_layers": 5,
    "layer_types": ["conv", "full_attention", "conv", "conv", "full_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 120,
    "block_multiple_of": 16,
    "conv_bias": False,
    "tie_word_embeddings": False,
    "max_position_embeddings": 2048,
    "pad_token_id": 256,
    "bos_token_id": 257,
    "eos_token_id": 258,
}
SMALL_LFM2_MOE: dict[str, Any] = {
    **{name: value for name, value in SMALL_LFM2.items() if not name.startswith("block_")},
    "model_type": "lfm2_moe",
    "intermediate_size": 80,
    "num_dense_layers": 2,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
}
SMALL_SIGLIP: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "patch_size": 4,
    "num_patches": 16,
}
"""Vision tower of a small multimodal LFM2."""
SMALL_VISION: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_heads": 2,
    "patch_size": 4,
    "num_position_embeddings": 16,
}
"""Vision tower of a small multimodal Qwen3.5."""
SMALL_FALCON_H1: dict[str, Any] = {
    "model_type": "falcon_h1",
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "intermediate_size": 80,
    "mamba_d_ssm": 64,
    "mamba_d_state": 16,
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 32,
    "mamba_rms_norm": False,
    "mamba_norm_before_gate": False,
    "embedding_multiplier": 1.4,
    "lm_head_multiplier": 0.6,
    "attention_in_multiplier": 0.9,
    "attention_out_multiplier": 0.7,
    "key_multiplier": 0.8,
    "ssm_in_multiplier": 1.2,
    "ssm_out_multiplier": 0.5,
    "ssm_multipliers": [0.4, 0.9, 0.7, 1.3, 0.6],
    "mlp_multipliers": [0.8, 0.6],
    "max_position_embeddings": 2048,
    "pad_token_id": 256,
    "bos_token_id": 257,
    "eos_token_id": 258,
}
SMALL_BAMBA: dict[str, Any] = {
    "model_type": "bamba",
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "attn_layer_indices": [1, 3],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 80,
    "mamba_d_state": 16,
    "mamba_n_heads": 8,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 32,
    "max_position_embeddings": 2048,
    "pad_token_id": 256,
    "bos_token_id": 257,
    "eos_token_id": 258,
}
SMALL_KIMI_LINEAR: dict[str, Any] = {
    "model_type": "kimi_linear",
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "linear_num_heads": 3,
    "linear_head_dim": 20,
    "linear_conv_kernel_dim": 4,
    "intermediate_size": 80,
    "moe_intermediate_size": 24,
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "routed_scaling_factor": 1.7,
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    "tie_word_embeddings": False,
    "max_position_embeddings": 2048,
    "pad_token_id": 256,
    "bos_token_id": 257,
    "eos_token_id": 258,
}
SMALL_ZAMBA2: dict[str, Any] = {
    "model_type": "zamba2",
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "num_hidden_layers": 6,
    "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid", "hybrid", "mamba"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 80,
    "mamba_d_state": 16,
    "mamba_ngroups": 2,
    "n_mamba_heads": 8,
    "chunk_size": 32,
    "num_mem_blocks": 2,
    "adapter_rank": 8,
    "tie_word_embeddings": True,
    "max_position_embeddings": 2048,
    "pad_token_id": 256,
    "bos_token_id": 257,
    "eos_token_id": 258,
}
SMALL_MAMBA2: dict[str, Any] = {
    "model_type": "mamba2",
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "state_size": 16,
    "num_heads": 8,
    "head_dim": 12,
    "n_groups": 2,
    "chunk_size": 32,
    "tie_word_embeddings": True,
    "max_position_embeddings": 2048,
    "pad_token_id": 256,
    "bos_token_id": 257,
    "eos_token_id": 258,
}


def random_checkpoint(
    fields: dict[str, Any],
    directory: Path,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    shard: str = "5GB",
    save_original_format: bool = True,
    **overrides: Any,
) -> Path:
    """Write config.json, safetensors, tokenizer and chat template to `directory`; fields as in the config.

    save_original_format: whether tensors are named as in published checkpoints, if those names are others.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**{**fields, **overrides})
    model = AutoModelForCausalLM.from_config(config)
    randomize(model, seed, zero_centered=config.model_type.startswith("qwen3_"))
    directory.mkdir(parents=True, exist_ok=True)
    tensors = model.to(dtype).state_dict()
    if config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    model.save_pretrained(
        directory, state_dict=tensors, max_shard_size=shard, save_original_format=save_original_format
    )
    write_tokenizer(directory)
    return directory


def random_nemotron_h(directory: Path, **more: Any) -> Path:
    return random_checkpoint(SMALL, directory, **more)


def random_granite(directory: Path, **more: Any) -> Path:
    """Write a random Granite 4 hybrid."""
    return random_checkpoint(SMALL_GRANITE, directory, **more)


def random_falcon_h1(directory: Path, **more: Any) -> Path:
    """Write a random Falcon-H1 model, whose mixers lie side by side."""
    return random_checkpoint(SMALL_FALCON_H1, directory, **more)


def random_qwen3_next(directory: Path, **more: Any) -> Path:
    """Write a random Qwen3-Next model, whose recurrence is the gated delta rule."""
    return random_checkpoint(SMALL_QWEN3_NEXT, directory, **more)


def random_qwen3_5(directory: Path, **more: Any) -> Path:
    """Write a random text model of Qwen3.5; with `num_experts`, one whose layers have experts."""
    return random_checkpoint(SMALL_QWEN3_5_MOE if "num_experts" in more else SMALL_QWEN3_5, directory, **more)


def random_multimodal_qwen3_5(
    directory: Path,
    *,
    seed: int = 0,
    shard: str = "5GB",
    stacked_experts: bool = False,
    **overrides: Any,
) -> Path:
    """Write a random Qwen3.5 as it is published: a text model with a vision tower and heads for drafts.

    With `num_experts`, its layers have experts, one tensor for all of them with `stacked_experts`.
    """
    from safetensors.torch import load_file, save_file
    from transformers import AutoConfig, AutoModelForImageTextToText

    text = {**(SMALL_QWEN3_5_MOE if "num_experts" in overrides else SMALL_QWEN3_5), **overrides}
    config = AutoConfig.for_model(
        text["model_type"].removesuffix("_text"),
        text_config=text,
        vision_config={**SMALL_VISION, "out_hidden_size": text["hidden_size"]},
        tie_word_embeddings=text["tie_word_embeddings"],
    )
    model = AutoModelForImageTextToText.from_config(config)
    randomize(model, seed, zero_centered=True)
    model.save_pretrained(directory, save_original_format=not stacked_experts, max_shard_size=shard)
    file = max(directory.glob("*.safetensors"))
    drafts = {"mtp.fc.weight": torch.ones(48, 96), "mtp.layers.0.input_layernorm.weight": torch.ones(48)}
    save_file({**load_file(file), **drafts}, file, metadata={"format": "pt"})
    write_tokenizer(directory)
    return directory


def add_draft_head(directory: Path, *, seed: int = 5, agrees: bool = False) -> Path:
    """Add a random head for drafts to a checkpoint, by the published names; transformers drops them.

    `agrees`: model and head are changed so that both mostly go by the last token, and drafts are often right.
    """
    from safetensors.torch import load_file, save_file

    config = json.loads((directory / "config.json").read_text())
    config = config.get("text_config", config)
    file = max(directory.glob("*.safetensors"))
    tensors = load_file(file)
    head = _nemotron_head(config) if config["model_type"] == "nemotron_h" else _qwen_head(config)
    g, drawn = torch.Generator().manual_seed(seed), {}
    for name, shape in head.items():
        noise = torch.randn(shape, generator=g)
        # As in `randomize`: weights of norms are near one, or near zero where one is added to them.
        near = 0.0 if config["model_type"].startswith("qwen3_") else 1.0
        drawn[name] = noise * shape[1] ** -0.5 if len(shape) == 2 else near + 0.3 * noise
    if agrees:
        _agree(tensors, drawn)
    mine = {f"mtp.{name}": tensor.to(tensors[next(iter(tensors))].dtype) for name, tensor in drawn.items()}
    save_file({**tensors, **mine}, file, metadata={"format": "pt"})
    return directory


def _attention_shapes(config: dict[str, Any], prefix: str, *, gated: bool) -> dict[str, tuple[int, ...]]:
    d, width = config["hidden_size"], config["head_dim"]
    query, keys = config["num_attention_heads"] * width, config["num_key_value_heads"] * width
    return {
        f"{prefix}.q_proj.weight": (query * (2 if gated else 1), d),
        f"{prefix}.k_proj.weight": (keys, d),
        f"{prefix}.v_proj.weight": (keys, d),
        f"{prefix}.o_proj.weight": (d, query),
    }


def _qwen_head(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors of a head of Qwen3-Next or Qwen3.5."""
    d, layer = config["hidden_size"], "layers.0."
    head: dict[str, tuple[int, ...]] = {
        "fc.weight": (d, 2 * d),
        "pre_fc_norm_embedding.weight": (d,),
        "pre_fc_norm_hidden.weight": (d,),
        "norm.weight": (d,),
        layer + "input_layernorm.weight": (d,),
        layer + "post_attention_layernorm.weight": (d,),
        layer + "self_attn.q_norm.weight": (config["head_dim"],),
        layer + "self_attn.k_norm.weight": (config["head_dim"],),
        **_attention_shapes(config, layer + "self_attn", gated=True),
    }
    parts = {"": config.get("intermediate_size", 0)}
    if experts := config.get("num_experts", 0):
        parts = {f"experts.{number}.": config["moe_intermediate_size"] for number in range(experts)}
        parts["shared_expert."] = config["shared_expert_intermediate_size"]
        head[layer + "mlp.gate.weight"] = (experts, d)
        head[layer + "mlp.shared_expert_gate.weight"] = (1, d)
    for part, inner in parts.items():
        for name in ("gate_proj", "up_proj"):
            head[f"{layer}mlp.{part}{name}.weight"] = (inner, d)
        head[f"{layer}mlp.{part}down_proj.weight"] = (d, inner)
    return head


def _nemotron_head(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors of a head of Nemotron 3, with a dense feed-forward or with experts."""
    d = config["hidden_size"]
    head: dict[str, tuple[int, ...]] = {
        "layers.0.enorm.weight": (d,),
        "layers.0.hnorm.weight": (d,),
        "layers.0.eh_proj.weight": (d, 2 * d),
        "layers.0.norm.weight": (d,),
        **_attention_shapes(config, "layers.0.mixer", gated=False),
        "layers.1.norm.weight": (d,),
        "layers.1.final_layernorm.weight": (d,),
    }
    parts, mixer = {"": (d, config["intermediate_size"])}, "layers.1.mixer."
    if latent := config.get("moe_latent_size"):
        experts = config["n_routed_experts"]
        parts = {f"experts.{number}.": (latent, config["moe_intermediate_size"]) for number in range(experts)}
        parts["shared_experts."] = d, config["moe_shared_expert_intermediate_size"]
        head[mixer + "gate.weight"] = (experts, d)
        head[mixer + "gate.e_score_correction_bias"] = (experts,)
        head[mixer + "fc1_latent_proj.weight"] = (latent, d)
        head[mixer + "fc2_latent_proj.weight"] = (d, latent)
    for part, (width, inner) in parts.items():
        head[f"{mixer}{part}up_proj.weight"] = (inner, width)
        head[f"{mixer}{part}down_proj.weight"] = (width, inner)
    return head


def _agree(model: dict[str, torch.Tensor], head: dict[str, torch.Tensor]) -> None:
    """Let the last token decide what a model and its head foresee, mostly."""
    embedding = next(name for name in model if name.endswith(("embed_tokens.weight", "embeddings.weight")))
    last_norm = embedding.replace("embed_tokens", "norm").replace("embeddings", "norm_f")
    model[embedding] *= 20
    for name, tensor in head.items():
        if name in ("fc.weight", "layers.0.eh_proj.weight"):
            tensor.mul_(0.1).add_(torch.eye(*tensor.shape))
        elif name in ("pre_fc_norm_embedding.weight", "layers.0.enorm.weight"):
            tensor.copy_(0.1 * (tensor - tensor.mean().round()) + tensor.mean().round())
        elif name in ("norm.weight", "layers.1.final_layernorm.weight"):
            tensor.copy_(model[last_norm])
        elif name.endswith(("o_proj.weight", "down_proj.weight", "fc2_latent_proj.weight")):
            tensor *= 0.1


def random_olmo_hybrid(directory: Path, *, renamed: bool = True, **more: Any) -> Path:
    """Write a random OLMo hybrid, with the names of transformers' modules unless `renamed`."""
    return random_checkpoint(SMALL_OLMO_HYBRID, directory, save_original_format=renamed, **more)


def random_lfm2(directory: Path, **more: Any) -> Path:
    """Write a random LFM2; with `num_experts`, one whose later layers have experts."""
    return random_checkpoint(SMALL_LFM2_MOE if "num_experts" in more else SMALL_LFM2, directory, **more)


def random_multimodal_lfm2(directory: Path, *, seed: int = 0, **overrides: Any) -> Path:
    """Write a random LFM2 as it is published with a vision tower."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    text = {**SMALL_LFM2, **overrides}
    config = AutoConfig.for_model(
        "lfm2_vl",
        text_config=text,
        vision_config={"model_type": "siglip2_vision_model", **SMALL_SIGLIP},
        tie_word_embeddings=text["tie_word_embeddings"],
        image_token_id=VOCAB - 1,
    )
    model = AutoModelForImageTextToText.from_config(config)
    randomize(model, seed)
    model.save_pretrained(directory)
    write_tokenizer(directory)
    return directory


def random_bamba(directory: Path, **more: Any) -> Path:
    """Write a random Bamba model, whose attention has rotary positions."""
    return random_checkpoint(SMALL_BAMBA, directory, **more)


def random_kimi_linear(directory: Path, **more: Any) -> Path:
    """Write a random Kimi-Linear: decays of single channels, latent attention, experts."""
    return random_checkpoint(SMALL_KIMI_LINEAR, directory, **more)


def random_zamba2(directory: Path, **more: Any) -> Path:
    """Write a random Zamba2, whose layers share two transformer blocks."""
    random_checkpoint(SMALL_ZAMBA2, directory, **more)
    # A tied embedding has unit weights: without this, logits would be ten times those of other families.
    scale_tensor(directory, "model.final_layernorm.weight", 0.1)
    return directory


def scale_tensor(directory: Path, name: str, factor: float) -> None:
    """Multiply one tensor of a checkpoint by a factor."""
    from safetensors.torch import load_file, save_file

    file = next(path for path in sorted(directory.glob("*.safetensors")) if name in load_file(path))
    tensors = load_file(file)
    save_file({**tensors, name: tensors[name] * factor}, file, metadata={"format": "pt"})


def random_mamba2(directory: Path, **more: Any) -> Path:
    """Write a random Mamba2 model without attention."""
    return random_checkpoint(SMALL_MAMBA2, directory, **more)


def randomize(model: torch.nn.Module, seed: int, *, zero_centered: bool = False) -> None:
    """Draw weights with unit gain, decays and step sizes over their whole range, none left at 0 or 1."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            noise = torch.randn(tensor.shape, generator=g)
            if name.endswith("A_log"):
                tensor.copy_(torch.rand(tensor.shape, generator=g) * 3 - 1)
            elif name.endswith("dt_bias"):
                tensor.copy_(noise - 2)
            elif name.endswith(("norm.weight", "norm_f.weight", "layernorm.weight", ".D")):
                # Where one is added to weights of norms they are near zero, but behind a recurrence.
                near = 0 if zero_centered and "linear_attn" not in name else 1
                tensor.copy_(near + 0.3 * noise)
            elif tensor.dim() == 1:
                tensor.copy_(0.3 * noise)
            elif name.endswith(("embeddings.weight", "embed_tokens.weight")):
                tensor.copy_(noise)
            else:
                # Of one expert where a tensor holds those of all.
                fan_in = tensor[0].numel() if tensor.dim() < 3 or "conv1d" in name else tensor.shape[-1]
                tensor.copy_(noise * fan_in**-0.5)
        for name, tensor in model.named_buffers():
            if name.endswith(("e_score_correction_bias", "expert_bias")):
                tensor.copy_(0.1 * torch.randn(tensor.shape, generator=g))
