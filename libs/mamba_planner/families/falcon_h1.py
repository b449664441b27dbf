"""Falcon-H1: attention and Mamba2 side by side in every layer, then a gated feed-forward."""

from mamba_planner.families import blocks, positions
from mamba_planner.families.fields import Fields
from mamba_planner.model_config import LayerKind, MlpConfig, ModelConfig, Multipliers


def model_config(fields: Fields, architecture: str) -> ModelConfig:
    count = fields.layer_count("num_hidden_layers")
    eps = fields.number("rms_norm_eps", default=1e-5)
    parallel: list[LayerKind] = ["mamba_attention"] * count
    layers, owners = blocks.with_feed_forward(parallel, ["mlp"] * count)
    return ModelConfig(
        family="falcon_h1",
        architecture=architecture,
        hidden_size=fields.integer("hidden_size"),
        vocab_size=fields.integer("vocab_size"),
        layers=layers,
        checkpoint_layers=owners,
        mamba=blocks.mamba_d_mixer(
            fields,
            eps,
            inner=fields.integer("mamba_d_ssm", default=None, absent=1024),
            gated_norm=fields.flag("mamba_rms_norm", default=False),
            norm_before_gate=fields.flag("mamba_norm_before_gate", default=True),
            out_bias=fields.flag("projectors_bias", default=False),
        ),
        gated_delta=None,
        attention=blocks.attention(
            fields, kv_heads=8, rope_theta=positions.rope_theta(fields, default=100_000.0)
        ),
        mlp=MlpConfig(
            intermediate=fields.integer("intermediate_size"),
            activation=fields.word("hidden_act", default="silu"),
            gated=True,
            bias=fields.flag("mlp_bias", default=False),
        ),
        norm_eps=eps,
        tie_embeddings=fields.flag("tie_word_embeddings", default=False),
        residual_in_fp32=False,
        max_position=positions.max_position(fields),
        multipliers=_multipliers(fields),
        **blocks.common(fields, bos=1, eos=2),
    )


def _multipliers(fields: Fields) -> Multipliers:
    gate, down = fields.numbers("mlp_multipliers", length=2, default=(1.0, 1.0))
    z, x, b, c, dt = fields.numbers("ssm_multipliers", length=5, default=(1.0,) * 5)
    return Multipliers(
        embedding=fields.number("embedding_multiplier", default=1.0),
        logits=fields.number("lm_head_multiplier", default=1.0),
        attention_in=fields.number("attention_in_multiplier", default=1.0),
        attention_out=fields.number("attention_out_multiplier", default=1.0),
        key=fields.number("key_multiplier", default=1.0),
        ssm_in=fields.number("ssm_in_multiplier", default=1.0),
        ssm_out=fields.number("ssm_out_multiplier", default=1.0),
        ssm=(z, x, b, c, dt),
        mlp_gate=gate,
        mlp_down=down,
    )
