"""Kimi-Linear: delta rule layers with a decay of each channel, latent attention without positions, experts.

The registry calls `model_config`.
"""

from mamba_planner.families import blocks, positions
from mamba_planner.families.fields import Fields
from mamba_planner.model_config import (
    AttentionConfig,
    GatedDeltaConfig,
    LatentConfig,
    LayerKind,
    MlpConfig,
    ModelConfig,
    MoeConfig,
)

_KINDS: dict[str, LayerKind] = {"linear_attention": "gated_delta", "full_attention": "attention"}
_FEED_FORWARD: dict[str, LayerKind] = {"dense": "mlp", "sparse": "moe"}
_ATTENTION_INTERVAL = 4


def model_config(fields: Fields, architecture: str) -> ModelConfig:
    _check_fixed(fields)
    mixers, second = _mixers(fields), _feed_forwards(fields)
    if len(second) != len(mixers):
        raise fields.wrong("mlp_layer_types", f"has {len(second)} layers, and layer_types {len(mixers)}")
    layers, owners = blocks.with_feed_forward(mixers, second)
    eps = fields.number("rms_norm_eps", default=1e-5)
    activation = fields.word("hidden_act", default="silu")
    return ModelConfig(
        family="kimi_linear",
        architecture=architecture,
        hidden_size=fields.integer("hidden_size"),
        vocab_size=fields.integer("vocab_size"),
        layers=layers,
        checkpoint_layers=owners,
        mamba=None,
        gated_delta=_gated_delta(fields, eps, activation) if "gated_delta" in mixers else None,
        attention=_attention(fields) if "attention" in mixers else None,
        mlp=(
            MlpConfig(fields.integer("intermediate_size"), activation, gated=True, bias=False)
            if "mlp" in second
            else None
        ),
        moe=_moe(fields, activation) if "moe" in second else None,
        norm_eps=eps,
        tie_embeddings=fields.flag("tie_word_embeddings", default=False),
        residual_in_fp32=False,
        max_position=positions.without_window(
            fields, fields.integer("max_position_embeddings", "model_max_length", default=1 << 20)
        ),
        **blocks.common(fields, bos=163_584, eos=163_586),
    )


def _check_fixed(fields: Fields) -> None:
    """Raise `WrongField` for a field that asks for a computation which the family does not have."""
    if (rank := fields.integer("q_lora_rank", default=None)) is not None:
        raise fields.wrong("q_lora_rank", f"{rank} is not supported; supported: null")
    if not fields.flag("mla_use_nope", default=True):
        raise fields.wrong("mla_use_nope", "false is not supported; supported: true")
    if fields.flag("attention_bias", default=False):
        raise fields.wrong("attention_bias", "true is not supported; supported: false")
    if (frequency := fields.integer("moe_layer_freq", default=1)) != 1:
        raise fields.wrong("moe_layer_freq", f"{frequency} is not supported; supported: 1")
    scoring = fields.word("moe_router_activation_func", default="sigmoid")
    if scoring != "sigmoid":
        raise fields.wrong("moe_router_activation_func", f"{scoring!r} is not supported; supported: sigmoid")


def _linear(fields: Fields) -> Fields:
    """Return the section with the shapes of the delta rule; the newer spelling has none, so it is empty."""
    section = fields.section("linear_attn_config")
    for name in ("gate_lower_bound", "use_full_rank_gate"):
        if section.has(name):
            raise fields.wrong("linear_attn_config", f"{name} is not supported")
    return section


def _gated_delta(fields: Fields, eps: float, activation: str) -> GatedDeltaConfig:
    section = _linear(fields)
    heads = section.integer("num_heads", default=fields.integer("linear_num_heads", default=32))
    width = section.integer("head_dim", default=fields.integer("linear_head_dim", default=128))
    taps = fields.integer("linear_conv_kernel_dim", default=4, minimum=2)
    return GatedDeltaConfig(
        value_heads=heads,
        key_heads=heads,
        value_dim=width,
        key_dim=width,
        conv_kernel=section.integer("short_conv_kernel_size", default=taps, minimum=2),
        norm_eps=eps,
        activation=activation,
        # Both gates pass through the width of a head.
        gate_rank=width,
    )


def _attention(fields: Fields) -> AttentionConfig:
    heads = fields.integer("num_attention_heads")
    if (keys := fields.integer("num_key_value_heads", default=heads)) != heads:
        raise fields.wrong("num_key_value_heads", f"{keys} is not supported; supported: {heads}")
    latent = LatentConfig(
        rank=fields.integer("kv_lora_rank"),
        own=fields.integer("qk_nope_head_dim"),
        shared=fields.integer("qk_rope_head_dim"),
        values=fields.integer("v_head_dim"),
    )
    return AttentionConfig(
        heads=heads,
        kv_heads=1,
        head_dim=latent.rank + latent.shared,
        bias=False,
        scale=(latent.own + latent.shared) ** -0.5,
        latent=latent,
    )


def _moe(fields: Fields, activation: str) -> MoeConfig:
    inner = fields.integer("moe_intermediate_size")
    return blocks.check_experts(
        fields,
        MoeConfig(
            experts=fields.integer("num_experts", "num_local_experts"),
            experts_per_token=fields.integer("num_experts_per_token", "num_experts_per_tok"),
            intermediate=inner,
            shared_intermediate=inner
            * fields.integer("num_shared_experts", "n_shared_experts", default=1, minimum=0),
            activation=activation,
            gated=True,
            bias=False,
            scoring="sigmoid",
            normalize=fields.flag("moe_renormalize", "norm_topk_prob", default=True),
            # Classes that read the configuration have different defaults.
            scale=fields.number("routed_scaling_factor"),
            groups=fields.integer("num_expert_group", "n_group", default=1),
            groups_per_token=fields.integer("topk_group", default=1),
        ),
    )


def _mixers(fields: Fields) -> list[LayerKind]:
    count = fields.layer_count("num_hidden_layers")
    section = _linear(fields)
    recurrent, attention = section.items("kda_layers"), section.items("full_attn_layers")
    if recurrent is not None and attention is not None:
        # These numbers begin at one.
        numbers = [*recurrent, *attention]
        if sorted(number for number in numbers if isinstance(number, int)) != [*range(1, count + 1)]:
            raise fields.wrong(
                "linear_attn_config",
                f"kda_layers and full_attn_layers must hold each number from 1 to {count} once",
            )
        return ["attention" if number in attention else "gated_delta" for number in range(1, count + 1)]
    values = fields.items("layer_types")
    if values is None:
        return [
            "attention" if index and index % _ATTENTION_INTERVAL == 0 else "gated_delta"
            for index in range(count)
        ]
    return blocks.named_kinds(fields, "layer_types", values, _KINDS)


def _feed_forwards(fields: Fields) -> list[LayerKind]:
    values = fields.items("mlp_layer_types")
    if values is None:
        dense = fields.integer("first_k_dense_replace", default=1, minimum=0)
        return ["mlp" if index < dense else "moe" for index in range(fields.layer_count("num_hidden_layers"))]
    return blocks.named_kinds(fields, "mlp_layer_types", values, _FEED_FORWARD)
