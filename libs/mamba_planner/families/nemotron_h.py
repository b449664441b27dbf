"""Nemotron-H, Nemotron Nano v2 (dense), Nemotron 3 Nano (experts) and Super (experts of a latent width).

Every layer is one block: mixer or feed-forward. The published pattern spells them M, *, -, E.
"""

from mamba_planner.errors import MissingField
from mamba_planner.families import blocks
from mamba_planner.families.fields import Fields
from mamba_planner.model_config import (
    AttentionConfig,
    LayerKind,
    MambaConfig,
    MlpConfig,
    ModelConfig,
    MoeConfig,
)

_PATTERN: dict[str, LayerKind] = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def model_config(fields: Fields, architecture: str) -> ModelConfig:
    layers = _layers(fields)
    return ModelConfig(
        family="nemotron_h",
        architecture=architecture,
        hidden_size=fields.integer("hidden_size"),
        vocab_size=fields.integer("vocab_size"),
        layers=layers,
        mamba=_mamba(fields) if "mamba" in layers else None,
        gated_delta=None,
        attention=_attention(fields) if "attention" in layers else None,
        mlp=_mlp(fields) if "mlp" in layers else None,
        moe=_moe(fields) if "moe" in layers else None,
        norm_eps=fields.number("layer_norm_epsilon", "rms_norm_eps", "norm_eps", default=1e-5),
        tie_embeddings=fields.flag("tie_word_embeddings", default=False),
        residual_in_fp32=fields.flag("residual_in_fp32", default=False),
        max_position=fields.integer("max_position_embeddings"),
        state_dtype_hint=fields.word("mamba_ssm_cache_dtype", default="") or None,
        **blocks.common(fields, bos=1, eos=2),
    )


def _layers(fields: Fields) -> tuple[LayerKind, ...]:
    for name in ("layers_block_type", "layer_types"):
        if (values := fields.items(name)) is not None:
            return tuple(blocks.layer_kinds(fields, name, values, ("mamba", "attention", "mlp", "moe")))
    pattern = fields.word("hybrid_override_pattern", default="")
    if not pattern:
        raise MissingField(
            fields.source,
            "field hybrid_override_pattern is missing (also looked for layers_block_type, layer_types)",
            field="hybrid_override_pattern",
        )
    for index, letter in enumerate(pattern):
        if letter not in _PATTERN:
            raise fields.wrong(
                "hybrid_override_pattern", f"letter {index} is {letter!r}; supported: {' '.join(_PATTERN)}"
            )
    count = fields.integer("num_hidden_layers", default=len(pattern))
    if count != len(pattern):
        raise fields.wrong(
            "num_hidden_layers", f"is {count}, but hybrid_override_pattern has {len(pattern)} letters"
        )
    return tuple(_PATTERN[letter] for letter in pattern)


def _attention(fields: Fields) -> AttentionConfig:
    """Read the attention, which has no positions. Raises `WrongField` if it only sees the last tokens."""
    if (window := fields.integer("sliding_window", default=None)) is not None:
        raise fields.wrong("sliding_window", f"{window} is not supported; supported: null")
    return blocks.attention(fields, kv_heads=8, head_dim=128)


def _mamba(fields: Fields) -> MambaConfig:
    bias = fields.flag("use_bias", default=False)
    return blocks.check_groups(
        fields,
        MambaConfig(
            heads=fields.integer("mamba_num_heads", "mamba_n_heads"),
            head_dim=fields.integer("mamba_head_dim", "mamba_d_head"),
            state_size=fields.integer("ssm_state_size", "mamba_d_state"),
            groups=fields.integer("n_groups", "mamba_n_groups"),
            conv_kernel=fields.integer("conv_kernel", "mamba_d_conv", minimum=2),
            chunk_size=fields.integer("chunk_size", "mamba_chunk_size", default=128),
            conv_bias=fields.flag("use_conv_bias", "mamba_conv_bias", default=True),
            proj_bias=bias,
            out_bias=bias,
            # `time_step_min` bounds how step sizes are initialised, not how the model computes.
            dt_limit=blocks.dt_limit(fields),
            norm_eps=fields.number("layer_norm_epsilon", "rms_norm_eps", "norm_eps", default=1e-5),
            activation=fields.word("mamba_hidden_act", default="silu"),
        ),
    )


def _mlp(fields: Fields) -> MlpConfig:
    return MlpConfig(
        intermediate=fields.integer("intermediate_size"),
        activation=fields.word("mlp_hidden_act", default="relu2"),
        gated=False,
        bias=fields.flag("mlp_bias", default=False),
    )


def _moe(fields: Fields) -> MoeConfig:
    moe = MoeConfig(
        experts=fields.integer("n_routed_experts", "num_local_experts"),
        experts_per_token=fields.integer("num_experts_per_tok"),
        intermediate=fields.integer("moe_intermediate_size"),
        shared_intermediate=fields.integer("moe_shared_expert_intermediate_size"),
        activation=fields.word("mlp_hidden_act", default="relu2"),
        gated=False,
        bias=fields.flag("mlp_bias", default=False),
        scoring="sigmoid",
        normalize=fields.flag("norm_topk_prob", default=True),
        scale=fields.number("routed_scaling_factor", default=1.0),
        groups=fields.integer("n_group", default=1),
        groups_per_token=fields.integer("topk_group", default=1),
        latent=fields.integer("moe_latent_size", default=None),
    )
    return blocks.check_experts(fields, moe)
