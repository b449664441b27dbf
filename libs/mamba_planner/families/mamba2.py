"""Pure Mamba2 (converted state-spaces checkpoints, Codestral Mamba): recurrent layers only."""

from mamba_planner.families import blocks
from mamba_planner.families.fields import Fields
from mamba_planner.model_config import LayerKind, MambaConfig, ModelConfig


def model_config(fields: Fields, architecture: str) -> ModelConfig:
    hidden = fields.integer("hidden_size", "d_model")
    heads = fields.integer("num_heads")
    head_dim = fields.integer("head_dim")
    inner = blocks.inner_width(fields, "expand", hidden)
    if heads * head_dim != inner:
        raise fields.wrong("num_heads", f"{heads} heads x {head_dim} must be expand x hidden_size = {inner}")
    eps = fields.number("layer_norm_epsilon", default=1e-5)
    bias = fields.flag("use_bias", default=False)
    layers: list[LayerKind] = ["mamba"] * fields.layer_count("num_hidden_layers", "n_layer")
    return ModelConfig(
        family="mamba2",
        architecture=architecture,
        hidden_size=hidden,
        vocab_size=fields.integer("vocab_size"),
        layers=tuple(layers),
        mamba=blocks.check_groups(
            fields,
            MambaConfig(
                heads=heads,
                head_dim=head_dim,
                state_size=fields.integer("state_size", "ssm_state_size"),
                groups=fields.integer("n_groups"),
                conv_kernel=fields.integer("conv_kernel", minimum=2),
                chunk_size=fields.integer("chunk_size", default=256),
                conv_bias=fields.flag("use_conv_bias", default=True),
                proj_bias=bias,
                out_bias=bias,
                dt_limit=blocks.dt_limit(fields),
                norm_eps=eps,
                activation=fields.word("hidden_act", default="silu"),
            ),
        ),
        gated_delta=None,
        attention=None,
        mlp=None,
        norm_eps=eps,
        tie_embeddings=fields.flag("tie_word_embeddings", default=False),
        residual_in_fp32=fields.flag("residual_in_fp32", default=True),
        max_position=fields.integer(
            "max_position_embeddings", "max_sequence_length", default=blocks.NO_LIMIT
        ),
        **blocks.common(fields, bos=0, eos=2),
    )
