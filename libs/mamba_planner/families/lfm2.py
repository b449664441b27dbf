"""LFM2 and LFM2.5, dense and with experts: gated short convolutions with attention every few layers.

The registry calls `model_config` and `sparse_model_config`. The only recurrent state is the window of each
convolution.
"""

from mamba_planner.families import blocks, positions
from mamba_planner.families.fields import LARGEST, Fields
from mamba_planner.model_config import (
    AttentionConfig,
    LayerKind,
    MlpConfig,
    ModelConfig,
    MoeConfig,
    ShortConvConfig,
)

_ACTIVATION = "silu"
"""Activation of every feed-forward of the family, which no field names."""


def model_config(fields: Fields, architecture: str) -> ModelConfig:
    mixers = _mixers(fields, _by_indices(fields))
    width = _adjusted_width(fields, fields.integer("block_ff_dim", "intermediate_size"))
    mlp = MlpConfig(width, _ACTIVATION, gated=True, bias=False)
    return _of_parts(fields, architecture, mixers, ["mlp"] * len(mixers), mlp, None)


def sparse_model_config(fields: Fields, architecture: str) -> ModelConfig:
    """Read a model whose layers have experts, except for the first ones."""
    mixers = _mixers(fields, None)
    dense = fields.integer("num_dense_layers", default=2, minimum=0)
    second: list[LayerKind] = ["mlp" if index < dense else "moe" for index in range(len(mixers))]
    mlp = MlpConfig(fields.integer("intermediate_size"), _ACTIVATION, gated=True, bias=False)
    return _of_parts(
        fields,
        architecture,
        mixers,
        second,
        mlp if "mlp" in second else None,
        _moe(fields) if "moe" in second else None,
    )


def _of_parts(
    fields: Fields,
    architecture: str,
    mixers: list[LayerKind],
    second: list[LayerKind],
    mlp: MlpConfig | None,
    moe: MoeConfig | None,
) -> ModelConfig:
    layers, owners = blocks.with_feed_forward(mixers, second)
    return ModelConfig(
        family="lfm2",
        architecture=architecture,
        hidden_size=fields.integer("hidden_size"),
        vocab_size=fields.integer("vocab_size"),
        layers=layers,
        checkpoint_layers=owners,
        mamba=None,
        gated_delta=None,
        short_conv=_short_conv(fields) if "short_conv" in mixers else None,
        attention=_attention(fields) if "attention" in mixers else None,
        mlp=mlp,
        moe=moe,
        norm_eps=fields.number("norm_eps", default=1e-5),
        tie_embeddings=fields.flag("tie_embedding", "tie_word_embeddings", default=True),
        residual_in_fp32=False,
        max_position=positions.max_position(fields),
        **blocks.common(fields, bos=1, eos=2),
    )


def _short_conv(fields: Fields) -> ShortConvConfig:
    return ShortConvConfig(
        channels=fields.integer("hidden_size"),
        conv_kernel=fields.integer("conv_L_cache", default=3, minimum=2),
        bias=fields.flag("conv_bias", default=False),
    )


def _attention(fields: Fields) -> AttentionConfig:
    return blocks.attention(
        fields, kv_heads=8, qk_norm=True, rope_theta=positions.rope_theta(fields, default=1_000_000.0)
    )


def _moe(fields: Fields) -> MoeConfig:
    return blocks.check_experts(
        fields,
        MoeConfig(
            experts=fields.integer("num_experts"),
            experts_per_token=fields.integer("num_experts_per_tok"),
            intermediate=fields.integer("moe_intermediate_size"),
            shared_intermediate=0,
            activation=_ACTIVATION,
            gated=True,
            bias=False,
            scoring="sigmoid",
            normalize=fields.flag("norm_topk_prob", default=True),
            scale=fields.number("routed_scaling_factor", default=1.0),
            correction=fields.flag("use_expert_bias", default=True),
        ),
    )


def _adjusted_width(fields: Fields, width: int) -> int:
    """Return the width of a feed-forward as the published code computes it from the configured one."""
    if not fields.flag("block_auto_adjust_ff_dim", default=True):
        return width
    narrow = int(2 * width / 3)
    factor = fields.number("block_ffn_dim_multiplier", default=None)
    if factor is None and fields.has("block_ffn_dim_multiplier"):
        return narrow
    multiple = fields.integer("block_multiple_of", default=256)
    scaled = (1.0 if factor is None else factor) * narrow
    if not 1 <= scaled <= LARGEST:
        raise fields.wrong("block_ffn_dim_multiplier", f"leaves a feed-forward of width {scaled:g}")
    return -(-int(scaled) // multiple) * multiple


def _mixers(fields: Fields, otherwise: list[LayerKind] | None) -> list[LayerKind]:
    values = fields.items("layer_types")
    if values is None:
        if otherwise is None:
            raise fields.missing("layer_types")
        return otherwise
    return blocks.layer_kinds(fields, "layer_types", values, ("short_conv", "attention"))


def _by_indices(fields: Fields) -> list[LayerKind] | None:
    """Return the mixers by the older list of layers with attention; None without that list."""
    if (attention := fields.items("full_attn_idxs")) is None:
        return None
    count = fields.layer_count("num_hidden_layers")
    for index in attention:
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < count:
            raise fields.wrong("full_attn_idxs", f"{index!r} is not a layer number below {count}")
    return ["attention" if index in attention else "short_conv" for index in range(count)]
