"""A model's directory with a configuration alone, for an engine whose weights are random."""

import json
from pathlib import Path
from typing import Any, Literal

from benchmarks.gpu.models import CONFIGS, NANO

Size = Literal["whole", "few", "small"]
"""Size of a model: as published; few layers of the published extents; few and narrow layers for the
interpreter."""
GRANITE, QWEN = "granite-4.0-h-tiny", "qwen3-next-80b-a3b"
FEW: dict[str, dict[str, Any]] = {
    NANO: {"hybrid_override_pattern": "M*-M-", "num_hidden_layers": 5},
    GRANITE: {"num_hidden_layers": 2, "layer_types": ["mamba", "attention"]},
    QWEN: {"num_hidden_layers": 4, "num_experts": 64},
}
_NARROW: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 1024,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 0,
}
SMALL: dict[str, dict[str, Any]] = {
    NANO: {
        "hybrid_override_pattern": "M*-",
        "num_hidden_layers": 3,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "ssm_state_size": 16,
        "n_groups": 2,
        "head_dim": 16,
    },
    GRANITE: {
        "mamba_n_heads": 4,
        "mamba_d_head": 16,
        "mamba_d_state": 16,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "attention_multiplier": 0.25,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "intermediate_size": 16,
        "shared_intermediate_size": 16,
    },
    QWEN: {
        "num_hidden_layers": 2,
        "full_attention_interval": 2,
        "head_dim": 16,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    },
}


def write_config(directory: Path, name: str, size: Size) -> Path:
    """Write the configuration of a published model; sizes other than "whole" are those of `FEW`."""
    fields = json.loads((CONFIGS / f"{name}.json").read_text())
    if size != "whole":
        fields |= FEW[name]
    if size == "small":
        fields |= _NARROW | SMALL[name]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(fields))
    return directory
