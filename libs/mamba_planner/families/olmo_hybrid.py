"""OLMo hybrid: gated delta rule layers with norms before them, and full attention with norms after it.

The registry calls `model_config`.
"""

from mamba_planner.families import blocks, positions
from mamba_planner.families.fields import Fields
from mamba_planner.model_config import AttentionConfig, GatedDeltaConfig, LayerKind, MlpConfig, ModelConfig

NORM_EPS = 1e-5
"""Epsilon of the norm behind the recurrence, which the published code does not configure."""
_ATTENTION_INTERVAL = 4


def model_config(fields: Fields, architecture: str) -> ModelConfig:
    mixers = _mixers(fields)
    layers, owners = blocks.with_feed_forward(mixers, ["mlp"] * len(mixers))
    activation = fields.word("hidden_act", default="silu")
    return ModelConfig(
        family="olmo_hybrid",
        architecture=architecture,
        hidden_size=fields.integer("hidden_size"),
        vocab_size=fields.integer("vocab_size"),
        layers=layers,
        checkpoint_layers=owners,
        # In a layer with attention both norms are after their mixers, in the others both are before them.
        norm_after=tuple(place for place, owner in enumerate(owners) if mixers[owner] == "attention"),
        mamba=None,
        gated_delta=_gated_delta(fields, activation) if "gated_delta" in mixers else None,
        attention=_attention(fields) if "attention" in mixers else None,
        mlp=MlpConfig(fields.integer("intermediate_size"), activation, gated=True, bias=False),
        norm_eps=fields.number("rms_norm_eps", default=1e-6),
        tie_embeddings=fields.flag("tie_word_embeddings", default=False),
        residual_in_fp32=False,
        max_position=positions.max_position(fields),
        **blocks.common(fields, bos=None, eos=100_257),
    )


def _attention(fields: Fields) -> AttentionConfig:
    return blocks.attention(
        fields, qk_norm=True, joint_norm=True, rope_theta=positions.rope_theta_or_none(fields)
    )


def _gated_delta(fields: Fields, activation: str) -> GatedDeltaConfig:
    heads = fields.integer("num_attention_heads")
    value_heads = fields.integer("linear_num_value_heads", default=heads)
    key_heads = fields.integer("linear_num_key_heads", default=heads)
    if value_heads % key_heads:
        raise fields.wrong("linear_num_key_heads", f"{key_heads} must divide the {value_heads} value heads")
    three_quarters = 3 * fields.integer("hidden_size") // (4 * key_heads)
    key_dim = fields.integer("linear_key_head_dim", default=three_quarters)
    if not key_dim:
        raise fields.wrong("linear_num_key_heads", f"{key_heads} heads are more than the hidden_size holds")
    return GatedDeltaConfig(
        value_heads=value_heads,
        key_heads=key_heads,
        value_dim=fields.integer("linear_value_head_dim", default=2 * key_dim),
        key_dim=key_dim,
        conv_kernel=fields.integer("linear_conv_kernel_dim", default=4, minimum=2),
        norm_eps=NORM_EPS,
        activation=activation,
        beta_scale=2.0 if fields.flag("linear_allow_neg_eigval", default=True) else 1.0,
    )


def _mixers(fields: Fields) -> list[LayerKind]:
    values = fields.items("layer_types")
    if values is None:
        count = fields.layer_count("num_hidden_layers")
        kinds: list[LayerKind] = [
            "gated_delta" if (index + 1) % _ATTENTION_INTERVAL else "attention" for index in range(count)
        ]
        # A model has at least one layer with attention.
        return kinds if "attention" in kinds else [*kinds[:-1], "attention"]
    named = blocks.layer_kinds(fields, "layer_types", values, ("mamba", "attention"))
    return ["gated_delta" if kind == "mamba" else kind for kind in named]
