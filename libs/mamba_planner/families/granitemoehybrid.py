"""Granite 4 hybrid, with experts (Small, Tiny) and without (Micro, 1B, 350M)."""

from mamba_planner.errors import MissingField
from mamba_planner.families import blocks, positions
from mamba_planner.families.fields import Fields
from mamba_planner.model_config import LayerKind, MlpConfig, ModelConfig, MoeConfig, Multipliers


def model_config(fields: Fields, architecture: str) -> ModelConfig:
    mixers = _mixers(fields)
    # Configurations without experts set the number to 0.
    experts = fields.integer("num_local_experts", default=0, absent=8, minimum=0)
    layers, owners = blocks.with_feed_forward(mixers, ["moe" if experts else "mlp"] * len(mixers))
    activation = fields.word("hidden_act", default="silu")
    shared = fields.integer("shared_intermediate_size")
    with_rope = fields.word("position_embedding_type", default="nope") == "rope"
    eps = fields.number("rms_norm_eps", default=1e-6)
    proj_bias = fields.flag("mamba_proj_bias", default=False)
    return ModelConfig(
        family="granitemoehybrid",
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
                scale=fields.number("attention_multiplier"),
                rope_theta=positions.rope_theta(fields) if with_rope else None,
            )
            if "attention" in mixers
            else None
        ),
        mlp=None if experts else MlpConfig(shared, activation, gated=True, bias=False),
        moe=(
            blocks.check_experts(
                fields,
                MoeConfig(
                    experts=experts,
                    experts_per_token=fields.integer("num_experts_per_tok"),
                    intermediate=fields.integer("intermediate_size"),
                    shared_intermediate=shared,
                    activation=activation,
                    gated=True,
                    bias=False,
                    scoring="softmax_topk",
                ),
            )
            if experts
            else None
        ),
        norm_eps=eps,
        tie_embeddings=fields.flag("tie_word_embeddings", default=False),
        residual_in_fp32=False,
        max_position=(
            positions.max_position(fields)
            if with_rope
            else positions.without_window(fields, fields.integer("max_position_embeddings"))
        ),
        multipliers=_multipliers(fields),
        **blocks.common(fields, bos=1, eos=2),
    )


def _multipliers(fields: Fields) -> Multipliers:
    divisor = fields.number("logits_scaling", default=1.0)
    if divisor == 0:
        raise fields.wrong("logits_scaling", "must not be 0")
    residual = fields.number("residual_multiplier", default=1.0)
    if residual == 0:
        raise fields.wrong("residual_multiplier", "must not be 0")
    return Multipliers(
        embedding=fields.number("embedding_multiplier", default=1.0),
        logits=1.0 / divisor,
        residual=residual,
    )


def _mixers(fields: Fields) -> list[LayerKind]:
    for name in ("layer_types", "layers_block_type"):
        if (values := fields.items(name)) is not None:
            return blocks.layer_kinds(fields, name, values, ("mamba", "attention"))
    # transformers assumes "all recurrent" here; for a published hybrid that would silently be wrong.
    raise MissingField(
        fields.source, "field layer_types is missing (also looked for layers_block_type)", field="layer_types"
    )
