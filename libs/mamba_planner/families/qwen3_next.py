"""Qwen3-Next: gated delta rule layers with full attention every few layers, sparse feed-forward.

The registry calls `model_config`; the adapter of Qwen3.5 calls the functions that read one part each.
"""

from mamba_planner.families import blocks, positions
from mamba_planner.families.fields import Fields
from mamba_planner.model_config import (
    AttentionConfig,
    GatedDeltaConfig,
    LayerKind,
    MlpConfig,
    ModelConfig,
    MoeConfig,
)


def model_config(fields: Fields, architecture: str) -> ModelConfig:
    kinds = mixers(fields)
    return of_parts(fields, "qwen3_next", architecture, kinds, _feed_forward(fields, len(kinds)), kv_heads=2)


def of_parts(
    fields: Fields,
    family: str,
    architecture: str,
    mixers: list[LayerKind],
    feed_forward: list[LayerKind],
    *,
    kv_heads: int,
    state_dtype: str | None = None,
) -> ModelConfig:
    """Return the configuration of a Qwen model with these mixers, each followed by its feed-forward.

    `mixers` and `feed_forward` have one entry for each decoder layer. `kv_heads` is the default for the
    number of heads of keys, and `state_dtype` the type that the model requires for its states; None = it
    requires none.
    """
    layers, owners = blocks.with_feed_forward(mixers, feed_forward)
    activation = fields.word("hidden_act", default="silu")
    eps = fields.number("rms_norm_eps", default=1e-6)
    return ModelConfig(
        family=family,
        architecture=architecture,
        hidden_size=fields.integer("hidden_size"),
        vocab_size=fields.integer("vocab_size"),
        layers=layers,
        checkpoint_layers=owners,
        mamba=None,
        gated_delta=gated_delta(fields, eps, activation) if "gated_delta" in mixers else None,
        attention=attention(fields, kv_heads=kv_heads) if "attention" in mixers else None,
        mlp=(
            MlpConfig(fields.integer("intermediate_size"), activation, gated=True, bias=False)
            if "mlp" in feed_forward
            else None
        ),
        moe=moe(fields, activation) if "moe" in feed_forward else None,
        norm_eps=eps,
        tie_embeddings=fields.flag("tie_word_embeddings", default=False),
        residual_in_fp32=False,
        max_position=positions.max_position(fields),
        state_dtype_hint=state_dtype,
        **blocks.common(fields, bos=None, eos=None),
    )


def attention(fields: Fields, *, kv_heads: int) -> AttentionConfig:
    """Read gated attention with norms of heads, which rotates a part of each head.

    `kv_heads` is the default for the number of heads of keys.
    """
    return blocks.attention(
        fields,
        kv_heads=kv_heads,
        head_dim=256,
        output_gate=True,
        qk_norm=True,
        rope_theta=positions.rope_theta(fields),
        rotary_fraction=positions.rotary_fraction(
            fields, default=fields.number("partial_rotary_factor", default=0.25)
        ),
    )


def gated_delta(fields: Fields, eps: float, activation: str) -> GatedDeltaConfig:
    """Read the mixers of the gated delta rule. Raises `WrongField` for heads that cannot be grouped."""
    value_heads = fields.integer("linear_num_value_heads")
    key_heads = fields.integer("linear_num_key_heads")
    if value_heads % key_heads:
        raise fields.wrong("linear_num_key_heads", f"{key_heads} must divide the {value_heads} value heads")
    return GatedDeltaConfig(
        value_heads=value_heads,
        key_heads=key_heads,
        value_dim=fields.integer("linear_value_head_dim"),
        key_dim=fields.integer("linear_key_head_dim"),
        conv_kernel=fields.integer("linear_conv_kernel_dim", minimum=2),
        norm_eps=eps,
        activation=activation,
    )


def moe(fields: Fields, activation: str) -> MoeConfig:
    """Read the experts, which a softmax chooses, and the shared expert, which has a gate of its own."""
    experts = MoeConfig(
        experts=fields.integer("num_experts"),
        experts_per_token=fields.integer("num_experts_per_tok"),
        intermediate=fields.integer("moe_intermediate_size"),
        shared_intermediate=fields.integer("shared_expert_intermediate_size"),
        activation=activation,
        gated=True,
        bias=False,
        scoring="softmax",
        normalize=fields.flag("norm_topk_prob", default=True),
        shared_gate=True,
    )
    return blocks.check_experts(fields, experts)


def mixers(fields: Fields) -> list[LayerKind]:
    """Read the mixer of each layer from the list of layers, or else from the interval of attention."""
    values = fields.items("layer_types")
    if values is None:
        count = fields.layer_count("num_hidden_layers")
        interval = fields.integer("full_attention_interval", default=4)
        return ["gated_delta" if (index + 1) % interval else "attention" for index in range(count)]
    kinds = blocks.layer_kinds(fields, "layer_types", values, ("mamba", "attention"))
    return ["gated_delta" if kind == "mamba" else kind for kind in kinds]


def _feed_forward(fields: Fields, count: int) -> list[LayerKind]:
    experts = fields.integer("num_experts", default=0, absent=512, minimum=0)
    step = fields.integer("decoder_sparse_step", default=1)
    dense = fields.items("mlp_only_layers") or []
    for index in dense:
        if isinstance(index, bool) or not isinstance(index, int):
            raise fields.wrong("mlp_only_layers", f"{index!r} is not a layer number")
    return [
        "moe" if experts and index not in dense and (index + 1) % step == 0 else "mlp"
        for index in range(count)
    ]
