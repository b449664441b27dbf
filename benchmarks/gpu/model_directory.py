"""A model's directory with a configuration alone, for an engine whose weights are random."""

import json
from pathlib import Path
from typing import Any

from benchmarks.gpu.models import CONFIGS, NANO

SMALL: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 32,
    "hybrid_override_pattern": "M*-",
    "num_hidden_layers": 3,
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "ssm_state_size": 16,
    "n_groups": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 32,
    "max_position_embeddings": 1024,
    "torch_dtype": "float32",
    "eos_token_id": 0,
}


def write_config(directory: Path, name: str, *, small: bool) -> Path:
    """Write the published configuration of `name`, or a small one of the same family as `NANO`."""
    fields = json.loads((CONFIGS / f"{NANO if small else name}.json").read_text())
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(fields | (SMALL if small else {})))
    return directory
