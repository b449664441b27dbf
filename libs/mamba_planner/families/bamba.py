"""Bamba: Mamba2 layers with a few attention layers, each followed by a gated feed-forward."""

from mamba_planner.families import blocks, positions
from mamba_planner.families.fields import Fields
from mamba_planner.model_config import LayerKind, MlpConfig, ModelConfig


def model_config(fields: Fields, architecture: str) -> ModelConfig:
    mixers = _mixers(fields)
    layers, owners = blocks.with_feed_forward(mixers, ["mlp"] * len(mixers))
    eps = fields.number("rms_norm_eps", default=1e-5)
    proj_bias = fields.flag("mamba_proj_bias", default=False)
    return ModelConfig(
        family="bamba",
        architecture=architecture,
        hidden_size=fields.integer("hidden_size"),
        vocab_size=fields.integer("vocab_size"),
        layers=layers,
        checkpoint_layers=owners,
        mamba=blocks.mamba_d_mixer(fields, eps, out_bias=proj_bias) if "mamba" in mixers else None,
        gated_delta=None,
        attention=(
            blocks.attention(
                fields,
                kv_heads=8,
                rope_theta=positions.rope_theta(fields),
                rotary_fraction=positions.rotary_fraction(
                    fields, default=fields.number("partial_rotary_factor", default=0.5)
                ),
            )
            if "attention" in mixers
            else None
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
        **blocks.common(fields, bos=1, eos=2),
    )


def _mixers(fields: Fields) -> list[LayerKind]:
    for name in ("layers_block_type", "layer_types"):
        if (values := fields.items(name)) is not None:
            return blocks.layer_kinds(fields, name, values, ("mamba", "attention"))
    count = fields.layer_count("num_hidden_layers")
    attention = fields.items("attn_layer_indices") or []
    for index in attention:
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < count:
            raise fields.wrong("attn_layer_indices", f"{index!r} is not a layer number below {count}")
    return ["attention" if index in attention else "mamba" for index in range(count)]
