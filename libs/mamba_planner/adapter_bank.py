"""Memory of an engine's places for LoRA adapters, counted from the model's shapes. Pure.

The places are reserved at the start for every projection that can be adapted, whatever adapters come. The
engine reserves exactly these bytes; `mamba_server.model.adapters` computes with them.
"""

from collections.abc import Iterator

from mamba_planner.arithmetic import DTYPE_BYTES
from mamba_planner.model_config import AttentionConfig, GatedDeltaConfig, LatentConfig, LayerKind, ModelConfig

MOST_ROWS = 512
"""Rows whose changes are computed at once, so that they need little memory."""
DECODES_AT_ONCE = 32
"""Decoding rows whose changes of products of heads with a latent are computed at once."""
Projection = tuple[int, tuple[int, ...]]
"""Number of inputs, and number of outputs of each part, in the order of the outputs."""
DELTA_INPUTS = {"qwen3_5": 4, "olmo_hybrid": 6}
"""Number of input projections of a gated delta mixer by family; 2 in the others."""


def bank_bytes(model: ModelConfig, dtype: str, *, places: int, rank: int, expert_rank: int = 0) -> int:
    """Return the bytes of an engine's `places` for adapters.

    `rank` is the largest rank of an adapter, and `expert_rank` the largest rank of its changes of experts.
    """
    numbers = sum(
        len(outputs) * inputs + sum(outputs)
        for kind in model.layers
        for inputs, outputs in _projections(model, kind)
    )
    experts = sum(_of_experts(model) for kind in model.layers if kind == "moe")
    return (numbers * rank + experts * expert_rank) * places * DTYPE_BYTES[dtype]


def _of_experts(model: ModelConfig) -> int:
    """Return how many numbers an adapter of rank 1 has for all experts of one sparse feed-forward."""
    if (moe := model.moe) is None:
        return 0
    projections, d = 3 if moe.gated else 2, model.hidden_size
    shared = moe.shared_intermediate if moe.latent is None else 0
    each = projections * ((moe.latent or d) + moe.intermediate)
    return moe.experts * each + (projections * (d + shared) if shared else 0)


def step_bytes(
    model: ModelConfig, dtype: str, *, device: str, places: int, rank: int, expert_rank: int = 0
) -> int:
    """Return the most bytes that the changes of one projection need while they are computed.

    CPUs compute them in float32, and convert the matrices of narrower types. The parameters are those of
    `bank_bytes`.
    """
    if not places:
        return 0
    size = max(4, DTYPE_BYTES[dtype]) if device == "cpu" else DTYPE_BYTES[dtype]
    converted = places * rank if size > DTYPE_BYTES[dtype] else 0
    numbers = max(
        (
            MOST_ROWS * (inputs + 2 * places * rank * len(outputs) + 2 * max(outputs))
            + converted * (len(outputs) * inputs + max(outputs))
            for kind in set(model.layers)
            for inputs, outputs in _projections(model, kind)
        ),
        default=0,
    )
    if model.attention is not None and (latent := model.attention.latent) is not None:
        numbers = max(numbers, _of_latent_heads(model.attention.heads, latent, rank))
    if expert_rank and (moe := model.moe) is not None:
        # Rows of one expert: their inputs, both halves of the inner features before and after, and results.
        width, inner = moe.latent or model.hidden_size, max(moe.intermediate, moe.shared_intermediate)
        numbers = max(numbers, MOST_ROWS * (5 * width + 6 * inner) + 2 * expert_rank * (width + inner))
        size = max(4, size)
    return numbers * size


def _of_latent_heads(heads: int, latent: LatentConfig, rank: int) -> int:
    """Return how many numbers are held while the changes of products of latent heads are computed.

    All rows of a prompt use the matrices of one adapter; for each decoding row, the matrices of its adapter
    are copied.
    """
    outputs = latent.own + latent.values
    matrices = 2 * rank * (latent.rank + heads * outputs)
    rows = heads * (2 * latent.rank + 2 * max(latent.own, latent.values) + rank)
    return max(MOST_ROWS * rows + matrices, DECODES_AT_ONCE * (rows + matrices))


def _projections(model: ModelConfig, kind: LayerKind) -> Iterator[Projection]:
    """Yield the projections of a block that can be adapted."""
    d = model.hidden_size
    if kind in ("attention", "mamba_attention") and (attention := model.attention) is not None:
        yield from _of_attention(attention, d)
    if kind in ("mamba", "mamba_attention", "shared_mamba") and (mamba := model.mamba) is not None:
        yield d, (mamba.inner + mamba.conv_dim + mamba.heads,)
        yield mamba.inner, (d,)
    if kind == "shared_mamba":
        yield from _of_shared_use(model)
    if kind == "gated_delta" and (delta := model.gated_delta) is not None:
        yield from _of_delta(delta, d, DELTA_INPUTS.get(model.family, 2))
    if kind == "short_conv" and (short := model.short_conv) is not None:
        yield d, (3 * short.channels,)
        yield short.channels, (d,)
    if kind == "mlp" and (mlp := model.mlp) is not None:
        yield d, (mlp.intermediate,) * (2 if mlp.gated else 1)
        yield mlp.intermediate, (d,)


def _of_shared_use(model: ModelConfig) -> Iterator[Projection]:
    """Yield the projections of one use of a shared transformer block, with the use's own changes of them."""
    shared, attention, mlp, d = model.shared, model.attention, model.mlp, model.hidden_size
    if shared is None or attention is None or mlp is None:
        return
    queries, keys = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
    yield 2 * d, (queries, keys, keys)
    yield queries, (d,)
    yield d, (2 * mlp.intermediate,)
    yield mlp.intermediate, (d,)
    yield d, (d,)
    changes = [(d, 2 * mlp.intermediate)]
    if shared.attention_adapters:
        changes += [(2 * d, keys)] * 3
    for inputs, outputs in changes:
        yield inputs, (shared.adapter_rank,)
        yield shared.adapter_rank, (outputs,)


def _of_attention(attention: AttentionConfig, d: int) -> Iterator[Projection]:
    if (latent := attention.latent) is not None:
        yield d, (attention.heads * (latent.own + latent.shared), attention.head_dim)
        yield latent.rank, (attention.heads * (latent.own + latent.values),)
        yield attention.heads * latent.values, (d,)
        return
    queries, keys = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
    yield d, (queries, keys, keys, *((queries,) if attention.output_gate else ()))
    yield queries, (d,)


def _of_delta(delta: GatedDeltaConfig, d: int, inputs: int) -> Iterator[Projection]:
    """Yield the projections of a mixer of the delta rule with `inputs` input projections and width `d`."""
    values, keys = delta.value_heads * delta.value_dim, delta.key_heads * delta.key_dim
    heads = delta.value_heads
    if (rank := delta.gate_rank) is not None:
        yield d, (keys, keys, values, heads, rank, rank)
        yield rank, (values,)
        yield rank, (heads * delta.decays,)
    elif inputs == 2:
        yield d, (delta.conv_dim + values, 2 * heads)
    elif inputs == 4:
        yield d, (delta.conv_dim, values, heads, heads)
    else:
        yield d, (keys, keys, values, values, heads, heads)
    yield values, (d,)
