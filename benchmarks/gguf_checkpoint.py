"""A dense Nemotron-H checkpoint as a GGUF file, so that llama.cpp computes with the very same weights.

Needs the `gguf` package, which lies in `gguf-py` of a llama.cpp source tree.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float32]]


def write_gguf(checkpoint: Path, llama_cpp: Path, kind: str) -> Path:
    """Write `checkpoint`/`kind`.gguf unless it is there already; returns its path.

    kind: `bf16`, `q8_0` or `q4_0`, of the matrices; vectors stay float32. The checkpoint is one safetensors
    file.
    """
    target = checkpoint / f"{kind}.gguf"
    if target.exists():
        return target
    sys.path.insert(0, str(llama_cpp / "gguf-py"))
    import gguf
    from safetensors import safe_open

    config = json.loads((checkpoint / "config.json").read_text())
    stored = gguf.GGMLQuantizationType[kind.upper()]
    aside = target.with_suffix(".part")
    writer = gguf.GGUFWriter(aside, "nemotron_h")
    _write_sizes(writer, config)
    with safe_open(checkpoint / "model.safetensors", framework="pt") as tensors:
        for name, array, is_matrix in _renamed(tensors, config):
            whole = np.ascontiguousarray(array, np.float32)
            if is_matrix:
                writer.add_tensor(name, gguf.quants.quantize(whole, stored), raw_dtype=stored)
            else:
                writer.add_tensor(name, whole)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return aside.rename(target)


def _kind(layer: str) -> str:
    if layer == "mlp":
        return "mlp"
    return "mamba" if layer in ("mamba", "linear_attention") else "attention"


def _write_sizes(writer: Any, config: dict[str, Any]) -> None:
    kinds = [_kind(layer) for layer in config["layers_block_type"]]
    heads, eps = config["mamba_num_heads"], config["layer_norm_epsilon"]
    writer.add_block_count(len(kinds))
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_head_count(config["num_attention_heads"])
    # A layer is what its sizes say: KV heads, a width of its own, or neither of them.
    writer.add_head_count_kv([config["num_key_value_heads"] if kind == "attention" else 0 for kind in kinds])
    writer.add_feed_forward_length([config["intermediate_size"] if kind == "mlp" else 0 for kind in kinds])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_layer_norm_eps(eps)
    writer.add_layer_norm_rms_eps(eps)
    writer.add_ssm_conv_kernel(config["conv_kernel"])
    writer.add_ssm_inner_size(heads * config["mamba_head_dim"])
    writer.add_ssm_state_size(config["ssm_state_size"])
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_group_count(config["n_groups"])
    writer.add_tokenizer_model("no_vocab")


def _renamed(tensors: Any, config: dict[str, Any]) -> Iterator[tuple[str, Array, bool]]:
    """Yield (name in the file, numbers, whether the tensor is a matrix of a product) of each tensor."""
    groups = config["n_groups"]

    def get(name: str) -> Array:
        array: Array = tensors.get_tensor(name).float().numpy()  # numpy has no bfloat16
        return array

    yield "token_embd.weight", get("backbone.embeddings.weight"), True
    yield "output_norm.weight", get("backbone.norm_f.weight"), False
    if "lm_head.weight" in tensors.keys():  # noqa: SIM118  no mapping: it has keys alone
        yield "output.weight", get("lm_head.weight"), True
    for number, layer in enumerate(config["layers_block_type"]):
        ours, theirs = f"backbone.layers.{number}", f"blk.{number}"
        mixer, kind = f"{ours}.mixer", _kind(layer)
        yield f"{theirs}.attn_norm.weight", get(f"{ours}.norm.weight"), False
        if kind == "mamba":
            yield f"{theirs}.ssm_in.weight", get(f"{mixer}.in_proj.weight"), True
            yield f"{theirs}.ssm_out.weight", get(f"{mixer}.out_proj.weight"), True
            yield f"{theirs}.ssm_conv1d.weight", get(f"{mixer}.conv1d.weight")[:, 0], False
            yield f"{theirs}.ssm_conv1d.bias", get(f"{mixer}.conv1d.bias"), False
            yield f"{theirs}.ssm_dt.bias", get(f"{mixer}.dt_bias"), False
            yield f"{theirs}.ssm_a", -np.exp(get(f"{mixer}.A_log"))[:, None], False
            yield f"{theirs}.ssm_d", get(f"{mixer}.D")[:, None], False
            yield f"{theirs}.ssm_norm.weight", get(f"{mixer}.norm.weight").reshape(groups, -1), False
        elif kind == "mlp":
            for part in ("up", "down"):
                yield f"{theirs}.ffn_{part}.weight", get(f"{mixer}.{part}_proj.weight"), True
        else:
            for part in ("q", "k", "v"):
                yield f"{theirs}.attn_{part}.weight", get(f"{mixer}.{part}_proj.weight"), True
            yield f"{theirs}.attn_output.weight", get(f"{mixer}.o_proj.weight"), True
