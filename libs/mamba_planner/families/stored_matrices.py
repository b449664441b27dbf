"""The matrices of a model that a quantized checkpoint may store in few bits, by their published names.

The registry counts them for models whose files are not at hand. Routers, embeddings, convolutions and experts
that lie in one tensor are left out: methods that quantize modules skip them.
"""

from collections import Counter
from collections.abc import Iterator

from mamba_planner.families.quantization import Held, Quantization
from mamba_planner.model_config import (
    AttentionConfig,
    GatedDeltaConfig,
    LayerKind,
    ModelConfig,
    StoredWeights,
)

Matrix = tuple[str, int]
"""Name of a module below its layer, and the elements of its weight."""
_FEED_FORWARD = {
    "lfm2": ("w1", "w3", "w2"),
    "granitemoehybrid": ("", "input_linear", "output_linear"),
    "block_sparse_moe.experts.0": ("w1", "w3", "w2"),
}
"""Names of gate, up and down projection by family; where a part of the model has such names of its own, by
that part."""
_MLP = {
    "nemotron_h": "mixer",
    "bamba": "feed_forward",
    "falcon_h1": "feed_forward",
    "lfm2": "feed_forward",
    "granitemoehybrid": "shared_mlp",
}
_EXPERTS = {
    "nemotron_h": ("mixer.experts.0", "mixer.shared_experts"),
    "lfm2": ("feed_forward.experts.0", ""),
    "granitemoehybrid": ("", "shared_mlp"),
    "kimi_linear": ("block_sparse_moe.experts.0", "block_sparse_moe.shared_experts"),
}
_MIXER = {"nemotron_h": "mixer", "mamba2": "mixer"}


def stored_weights(model: ModelConfig, quantization: Quantization) -> StoredWeights:
    """Count the elements of the matrices by the forms in which engines hold them."""
    elements: Counter[Held] = Counter()
    packed = packed_bytes = 0
    words: Counter[str] = Counter()
    for module, size in matrices(model):
        if (form := quantization.form_of(module)) is not None:
            elements[form.held] += size
            words[form.words] += size
            if form.packs_on_gpus:
                packed, packed_bytes = packed + size, packed_bytes + form.packed_bytes(size)
    return StoredWeights(
        summary=" and ".join(text for text, _ in words.most_common())
        or f"{quantization.method} of no matrix",
        int8=elements["int8"],
        int4=elements["int4"],
        int4_zeros=elements["int4_zeros"],
        plain=elements["plain"],
        packed=packed,
        packed_bytes=packed_bytes,
    )


def matrices(model: ModelConfig) -> Iterator[Matrix]:
    """Yield each matrix as `layers.3.mixer.in_proj`; the first expert stands for all of its layer."""
    yield from _shared(model)
    for index, kind in enumerate(model.layers):
        number = model.checkpoint_layers[index] if model.checkpoint_layers else index
        for name, size in _of_layer(model, kind):
            yield f"layers.{number}.{name}", size
    if not model.tie_embeddings:
        yield "lm_head", model.vocab_size * model.hidden_size


def _of_layer(model: ModelConfig, kind: LayerKind) -> Iterator[Matrix]:
    match kind:
        case "mlp" | "moe":
            yield from _of_feed_forward(model, kind)
        case _:
            yield from _of_mixers(model, kind)


def _of_mixers(model: ModelConfig, kind: LayerKind) -> Iterator[Matrix]:
    hidden, family = model.hidden_size, model.family
    prefix = _MIXER.get(family)
    if kind == "shared_mamba":
        prefix = "mamba_decoder.mamba"
    if kind in ("mamba", "mamba_attention", "shared_mamba") and (mamba := model.mamba) is not None:
        yield f"{prefix or 'mamba'}.in_proj", hidden * (mamba.inner + mamba.conv_dim + mamba.heads)
        yield f"{prefix or 'mamba'}.out_proj", hidden * mamba.inner
    if kind in ("attention", "mamba_attention") and model.attention is not None:
        yield from _attention(model.attention, prefix or "self_attn", hidden, family)
    if kind == "gated_delta" and model.gated_delta is not None:
        yield from _gated_delta(model.gated_delta, hidden, family)
    if kind == "short_conv" and (short := model.short_conv) is not None:
        yield "conv.in_proj", 3 * short.channels * hidden
        yield "conv.out_proj", short.channels * hidden


def _shared(model: ModelConfig) -> Iterator[Matrix]:
    """Yield the matrices of transformer blocks that layers share, by the layers that hold them."""
    shared, attention, mlp = model.shared, model.attention, model.mlp
    if shared is None or attention is None or mlp is None:
        return
    hidden, rank = model.hidden_size, shared.adapter_rank
    queries, keys = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
    users = [index for index, kind in enumerate(model.layers) if kind == "shared_mamba"]
    for use, layer in enumerate(users):
        yield f"layers.{layer}.linear", hidden * hidden
        prefix = f"layers.{users[use % shared.blocks]}.shared_transformer"
        if use < shared.blocks:
            for part, width in (("q", queries), ("k", keys), ("v", keys)):
                yield f"{prefix}.self_attn.{part}_proj", 2 * hidden * width
            yield f"{prefix}.self_attn.o_proj", hidden * queries
            yield f"{prefix}.feed_forward.gate_up_proj", 2 * hidden * mlp.intermediate
            yield f"{prefix}.feed_forward.down_proj", hidden * mlp.intermediate
        changes = {"feed_forward.gate_up_proj_adapter_list": (hidden, 2 * mlp.intermediate)}
        if shared.attention_adapters:
            changes |= {f"self_attn.linear_{part}_adapter_list": (2 * hidden, queries) for part in "qkv"}
        for name, (inputs, outputs) in changes.items():
            yield f"{prefix}.{name}.{use}.0", inputs * rank
            yield f"{prefix}.{name}.{use}.1", rank * outputs


def _of_feed_forward(model: ModelConfig, kind: LayerKind) -> Iterator[Matrix]:
    hidden, family = model.hidden_size, model.family
    if kind == "mlp" and (mlp := model.mlp) is not None:
        yield from _feed_forward(family, _MLP.get(family, "mlp"), hidden * mlp.intermediate, mlp.gated)
    if kind == "moe" and (moe := model.moe) is not None:
        experts, shared = _EXPERTS.get(family, ("mlp.experts.0", "mlp.shared_expert"))
        if experts:
            size = (moe.latent or hidden) * moe.intermediate * moe.experts
            yield from _feed_forward(family, experts, size, moe.gated)
        if moe.latent:
            yield "mixer.fc1_latent_proj", hidden * moe.latent
            yield "mixer.fc2_latent_proj", hidden * moe.latent
        if moe.shared_intermediate:
            yield from _feed_forward(family, shared, hidden * moe.shared_intermediate, moe.gated)


def _attention(attention: AttentionConfig, prefix: str, hidden: int, family: str) -> Iterator[Matrix]:
    if (latent := attention.latent) is not None:
        yield f"{prefix}.q_proj", hidden * attention.heads * (latent.own + latent.shared)
        yield f"{prefix}.kv_a_proj_with_mqa", hidden * attention.head_dim
        yield f"{prefix}.kv_b_proj", latent.rank * attention.heads * (latent.own + latent.values)
        yield f"{prefix}.o_proj", hidden * attention.heads * latent.values
        return
    queries, keys = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
    yield f"{prefix}.q_proj", hidden * queries * (2 if attention.output_gate else 1)
    yield f"{prefix}.k_proj", hidden * keys
    yield f"{prefix}.v_proj", hidden * keys
    yield f"{prefix}.{'out_proj' if family == 'lfm2' else 'o_proj'}", hidden * queries


def _gated_delta(delta: GatedDeltaConfig, hidden: int, family: str) -> Iterator[Matrix]:
    values, keys = delta.value_heads * delta.value_dim, delta.key_heads * delta.key_dim
    heads = delta.value_heads
    if (rank := delta.gate_rank) is not None:
        inputs = {"q_proj": keys, "k_proj": keys, "v_proj": values, "b_proj": heads, "o_proj": values}
        for name, width in {**inputs, "f_a_proj": rank, "g_a_proj": rank}.items():
            yield f"self_attn.{name}", hidden * width
        yield "self_attn.f_b_proj", rank * heads * delta.decays
        yield "self_attn.g_b_proj", rank * values
        return
    match family:
        case "qwen3_next":
            inputs = {"in_proj_qkvz": 2 * keys + 2 * values, "in_proj_ba": 2 * heads, "out_proj": values}
        case "qwen3_5":
            inputs = {"in_proj_qkv": 2 * keys + values, "in_proj_z": values, "out_proj": values}
            inputs |= {"in_proj_b": heads, "in_proj_a": heads}
        case _:
            inputs = {"q_proj": keys, "k_proj": keys, "v_proj": values, "g_proj": values, "o_proj": values}
            inputs |= {"b_proj": heads, "a_proj": heads}
    for name, width in inputs.items():
        yield f"linear_attn.{name}", hidden * width


def _feed_forward(family: str, prefix: str, size: int, gated: bool) -> Iterator[Matrix]:
    """Yield the projections, each of `size` elements."""
    usual = _FEED_FORWARD.get(family, ("gate_proj", "up_proj", "down_proj"))
    gate, up, down = _FEED_FORWARD.get(prefix, usual)
    if gated and gate:
        yield f"{prefix}.{gate}", size
    yield f"{prefix}.{up}", size if gate else 2 * size
    yield f"{prefix}.{down}", size
