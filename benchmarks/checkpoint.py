"""Checkpoints of the benchmarks.

Random Nemotron-H of the size of Granite 4.0 350M hybrid, and of 1B; Granite models, dense and with experts,
and a small Qwen3-Next.

Written once by transformers, so that transformers and the engine load the very same files. Run as
`python -m benchmarks.checkpoint 1b DIR` to write one in bfloat16.
"""

import argparse
from pathlib import Path
from typing import Any

MIXERS = "MMMMMMM*" * 4
"""28 mamba and 4 attention layers; each is followed by a feed-forward layer."""

CONFIG: dict[str, Any] = {
    "vocab_size": 32_768,
    "hidden_size": 768,
    "hybrid_override_pattern": "".join(f"{mixer}-" for mixer in MIXERS),
    "num_attention_heads": 12,
    "num_key_value_heads": 4,  # 2 x 4 layers x 4 heads x 64 x 2 bytes = 4096 bytes of KV a token
    "head_dim": 64,
    "intermediate_size": 2048,
    "ssm_state_size": 128,
    "mamba_num_heads": 48,
    "mamba_head_dim": 32,
    "n_groups": 1,
    # How the scan is cut, not what it computes: the plain path of transformers holds chunk² x heads x state
    # values for each chunk, gigabytes at 256.
    "chunk_size": 16,
    "conv_kernel": 4,
    "max_position_embeddings": 16_384,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

LARGER: dict[str, Any] = {
    **CONFIG,
    "hybrid_override_pattern": "".join(f"{mixer}-" for mixer in "MMMMMMMMM*" * 4),
    "hidden_size": 1536,
    "head_dim": 128,
    "intermediate_size": 4096,
    "mamba_head_dim": 64,
}
"""36 mamba and 4 attention layers, twice as wide: 1.16 billion parameters."""
GRANITE: dict[str, Any] = {
    "model_type": "granitemoehybrid",
    "vocab_size": 32_768,
    "hidden_size": 768,
    "num_hidden_layers": 32,
    "layer_types": ["mamba" if mixer == "M" else "attention" for mixer in MIXERS],
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "intermediate_size": 2048,
    "shared_intermediate_size": 2048,
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "mamba_d_state": 128,
    "mamba_n_heads": 48,
    "mamba_d_head": 32,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 16,  # as above
    "position_embedding_type": "nope",
    "embedding_multiplier": 12.0,
    "logits_scaling": 8.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 1 / 64,
    "max_position_embeddings": 16_384,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS: dict[str, Any] = {
    **GRANITE,
    "num_hidden_layers": 12,
    "layer_types": [*["mamba"] * 5, "attention"] * 2,
    "hidden_size": 1536,
    "intermediate_size": 512,
    "shared_intermediate_size": 1024,
    "num_local_experts": 64,
    "num_experts_per_tok": 6,
    "mamba_d_head": 64,
}
"""The layers of Granite 4.0 Tiny, 12 of its 40: 2.1 billion parameters, of which a token uses 0.4."""
QWEN3_NEXT: dict[str, Any] = {
    "model_type": "qwen3_next",
    "vocab_size": 32_768,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "full_attention_interval": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 1,
    "head_dim": 128,
    "partial_rotary_factor": 0.25,
    "linear_num_key_heads": 6,
    "linear_num_value_heads": 12,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 256,
    "shared_expert_intermediate_size": 256,
    "intermediate_size": 2048,
    "max_position_embeddings": 16_384,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""The kinds of layers of Qwen3-Next 80B-A3B, 12 of its 48, with 32 of its 512 experts: 0.33 billion
parameters, of which a token uses 0.11."""
SIZES = {
    "350m": CONFIG,
    "1b": LARGER,
    "granite": GRANITE,
    "granite-experts": EXPERTS,
    "qwen3-next": QWEN3_NEXT,
}


def random_350m(directory: Path, seed: int = 0) -> Path:
    """Write the smaller checkpoint in float32 unless it is there already; returns its directory."""
    return random_checkpoint(directory, CONFIG, "float32", seed)


def random_checkpoint(directory: Path, config: dict[str, Any], dtype: str, seed: int = 0) -> Path:
    """Write a checkpoint of random weights in one file unless it is there already; returns its directory.

    dtype: a name of torch's.
    """
    if (directory / "complete").exists():
        return directory
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    directory.mkdir(parents=True, exist_ok=True)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**{"model_type": "nemotron_h"} | config))
    model = model.to(getattr(torch, dtype))
    model.save_pretrained(directory, max_shard_size="1TB")
    tokenizer = Tokenizer(WordLevel({f"t{n}": n for n in range(config["vocab_size"])}, unk_token="t0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "complete").touch()
    return directory


def existing_checkpoint(text: str) -> Path:
    """Parse a checkpoint's directory given as an option. Raises ArgumentTypeError."""
    directory = Path(text)
    if not (directory / "config.json").is_file():
        raise argparse.ArgumentTypeError(
            f"{text} has no config.json: name the directory of a checkpoint, "
            f"such as `python -m benchmarks.checkpoint 350m {text}` writes"
        )
    return directory


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint", description=__doc__)
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--dtype", default="bfloat16")
    options = parser.parse_args()
    print(random_checkpoint(options.directory, SIZES[options.size], options.dtype))


if __name__ == "__main__":
    main()
