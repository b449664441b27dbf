"""The tables of the reference page of served models, from the adapters and the published configurations.

`scripts/docs.py` writes them. What a row says follows from the `ModelConfig` that an adapter returns.
"""

import json
from collections.abc import Iterator
from typing import Any

from mamba_cli.local.plan_source import published_config, published_names
from mamba_planner.arithmetic import (
    INT4_BLOCK_BYTES,
    INT4_ZEROS_BLOCK_BYTES,
    INT8_BLOCK,
    INT8_BLOCK_BYTES,
    kv_bytes_per_token,
    state_bytes,
)
from mamba_planner.families.fields import Fields
from mamba_planner.families.quantization import Held, read_quantization
from mamba_planner.families.registry import ADAPTERS, Adapter, model_config_from_hf, why_not_served
from mamba_planner.model_config import AttentionConfig, ModelConfig, MoeConfig

OLMO_HYBRID = {
    "model_type": "olmo_hybrid", "vocab_size": 64, "hidden_size": 64, "intermediate_size": 64,
    "num_hidden_layers": 4, "num_attention_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip
"""Configuration of a family of which no published one is shipped; its sizes appear nowhere."""
GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 128}


def _compressed(format_: str, **weights: object) -> dict[str, Any]:
    section = {"quant_method": "compressed-tensors", "format": format_}
    return {**section, "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}


QUANTIZED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("GPTQ, act order or not", GPTQ),
    ("GPTQ, not symmetric", {**GPTQ, "sym": False}),
    ("GPTQ of 8 bits", {**GPTQ, "bits": 8}),
    ("GPTQ of 8 bits, not symmetric", {**GPTQ, "bits": 8, "sym": False}),
    ("AWQ (gemm)", {"quant_method": "awq", "bits": 4, "group_size": 128}),
    (
        "compressed-tensors `pack-quantized` (W4A16)",
        _compressed("pack-quantized", num_bits=4, type="int", group_size=128),
    ),
    (
        "the same, not symmetric",
        _compressed("pack-quantized", num_bits=4, type="int", group_size=32, symmetric=False),
    ),
    (
        "compressed-tensors `int-quantized` (W8A8, W8A16)",
        _compressed("int-quantized", num_bits=8, type="int"),
    ),
    ("compressed-tensors `float-quantized`", _compressed("float-quantized", num_bits=8, type="float")),
    ("ModelOpt FP8", {"quant_method": "modelopt", "quant_algo": "FP8"}),
    ("FP8 in blocks of 128", {"quant_method": "fp8", "weight_block_size": [128, 128]}),
    ("ModelOpt NVFP4", {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    (
        "compressed-tensors `nvfp4-pack-quantized`",
        _compressed("nvfp4-pack-quantized", num_bits=4, type="float", group_size=16),
    ),
    (
        "compressed-tensors `mxfp4-pack-quantized`",
        _compressed("mxfp4-pack-quantized", num_bits=4, type="float", group_size=32),
    ),
)
"""Titles and configurations of the forms in which models are published."""
BLOCK_BYTES: dict[Held, int] = {
    "int8": INT8_BLOCK_BYTES,
    "int4": INT4_BLOCK_BYTES,
    "int4_zeros": INT4_ZEROS_BLOCK_BYTES,
}
HELD: dict[Held, str] = {
    "plain": "ordinary numbers",
    "int8": "the same numbers as int8",
    "int4": "the same numbers in four bits",
    "int4_zeros": "the same numbers in four bits, with zeros",
}
WEIGHTS = 1 << 20
"""Weights of the matrix whose bits on a GPU the table gives."""
MIXERS = {
    "mamba": "Mamba2",
    "gated_delta": "gated delta rule",
    "short_conv": "gated short convolution",
    "mamba_attention": "Mamba2 beside attention",
    "shared_mamba": "Mamba2 behind shared attention",
}


def model_tables() -> list[str]:
    """Return the lines of all tables."""
    published = {name: _published(name) for name in published_names()}
    lines = [
        "## Families",
        "",
        "| family | `model_type` | architecture | blocks | `--batch-invariant` |",
        "| --- | --- | --- | --- | --- |",
    ]
    for model_type, adapter in ADAPTERS.items():
        lines.append(_family_row(model_type, adapter, published))
    lines += [
        "",
        "## Published models",
        "",
        "These configurations are shipped: `mambaserve plan NAME --gpu H100` answers without a network. A",
        "state is what a sequence has beside its keys and values; its windows are in bfloat16, like the keys",
        "and values, which are those of one token.",
        "",
        "| name | recurrent / attention | parameters | float32 state | float16 state | keys and values |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, model in published.items():
        wide, narrow = (state_bytes(model, kind, "bfloat16").total for kind in ("float32", "float16"))
        layers = f"{model.recurrent_layers} / {model.attention_layers}"
        keys = kv_bytes_per_token(model, "bfloat16")
        size = f"{model.parameters / 1e9:.3g}B"
        lines.append(f"| `{name}` | {layers} | {size} | {wide:,} B | {narrow:,} B | {keys:,} B |")
    return [*lines, *_quantized_table()]


def _quantized_table() -> list[str]:
    """Return the lines of the table of quantized checkpoints."""
    lines = [
        "",
        "## Quantized checkpoints",
        "",
        "| published as | stored | held on CPUs | bits there | held on GPUs | bits there |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for title, section in QUANTIZED:
        quantization = read_quantization(Fields(section, title))
        assert quantization is not None
        form = quantization.form_of("layers.0.mlp.up_proj")
        assert form is not None
        on_cpus = BLOCK_BYTES[form.held] * 8 / INT8_BLOCK if form.held in BLOCK_BYTES else None
        on_gpus = form.packed_bytes(WEIGHTS) * 8 / WEIGHTS if form.packs_on_gpus else None
        of_gpus: Held = "plain"
        if on_gpus is not None:
            of_gpus = "int4" if form.symmetric else "int4_zeros"
        lines.append(
            f"| {title} | {form.words} | {HELD[form.held]} | {_bits(on_cpus)} | {HELD[of_gpus]} "
            f"| {_bits(on_gpus)} |"
        )
    return lines


def _bits(of_weight: float | None) -> str:
    return "those of `--dtype`" if of_weight is None else f"{of_weight:.4g}"


def _published(name: str) -> ModelConfig:
    model = model_config_from_hf(json.loads(published_config(name).read_text(encoding="utf-8")))
    assert why_not_served(model) is None, f"{name} is not served"
    return model


def _family_row(model_type: str, adapter: Adapter, published: dict[str, ModelConfig]) -> str:
    models = [model for model in published.values() if model.architecture == adapter.architecture]
    models = models or [model_config_from_hf(OLMO_HYBRID)]
    assert models[0].architecture == adapter.architecture, f"no configuration of {model_type} is shipped"
    blocks = list(dict.fromkeys(block for model in models for block in _blocks(model)))
    invariant = "yes" if models[0].gated_delta is None else "no"
    return (
        f"| {adapter.title} | `{model_type}` | `{adapter.architecture}` | {'; '.join(blocks)} | {invariant} |"
    )


def _blocks(model: ModelConfig) -> Iterator[str]:
    """Yield a description of each kind of block of a model."""
    for kind, name in MIXERS.items():
        if kind in model.layers:
            yield name + _delta_words(model)
    if model.attention is not None:
        yield _attention(model.attention)
    if "mlp" in model.layers:
        yield "dense feed-forward"
    if model.moe is not None:
        yield _experts(model.moe)
    if model.norm_after:
        yield "norms after attention and its feed-forward"


def _delta_words(model: ModelConfig) -> str:
    """Return the peculiarity of a model's delta rule, in words; "" if it has none."""
    if (delta := model.gated_delta) is None:
        return ""
    if delta.gate_rank is not None:
        return " with a decay of each channel"
    return " with negative eigenvalues" if delta.beta_scale > 1 else ""


def _attention(attention: AttentionConfig) -> str:
    words = []
    if attention.rope_theta is None:
        words.append("no positions")
    elif attention.rotary_fraction < 1:
        words.append(f"{attention.rotary_fraction:g} of each head rotated")
    else:
        words.append("rotary positions")
    if attention.qk_norm:
        words.append("a norm of all heads" if attention.joint_norm else "norms of heads")
    if attention.output_gate:
        words.append("a gate")
    if attention.latent is not None:
        words.append("one latent row for keys and values")
    return f"attention ({', '.join(words)})"


def _experts(moe: MoeConfig) -> str:
    words = ["sigmoid" if moe.scoring == "sigmoid" else "softmax"]
    if moe.shared_intermediate:
        words.append("a shared expert with a gate" if moe.shared_gate else "a shared expert")
    if moe.latent is not None:
        words.append("a latent width")
    return f"experts ({', '.join(words)})"
