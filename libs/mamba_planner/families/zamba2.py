"""Zamba2: Mamba2 layers, before some of which a transformer block runs that several of them share.

The registry calls `model_config`.
"""

from mamba_planner.families import blocks, positions
from mamba_planner.families.fields import Fields
from mamba_planner.model_config import (
    AttentionConfig,
    LayerKind,
    MambaConfig,
    MlpConfig,
    ModelConfig,
    SharedConfig,
)

NORM_EPS = 1e-5
"""Epsilon of the norm behind the gate of a mixer, which the published code does not configure."""
_KINDS: dict[str, LayerKind] = {
    "mamba": "mamba",
    "mamba2": "mamba",
    "linear_attention": "mamba",
    "hybrid": "shared_mamba",
}
_FIXED = {
    "use_long_context": False,
    "attention_bias": False,
    "gated_linear_unit": True,
    "use_shared_mlp_adapter": True,
}
"""Fields of which one value alone is served, and that value."""


def model_config(fields: Fields, architecture: str) -> ModelConfig:
    _check_fixed(fields)
    layers = _layers(fields)
    shared = "shared_mamba" in layers
    bias = fields.flag("add_bias_linear", default=False)
    hidden = fields.integer("hidden_size")
    attention = _attention(fields, hidden) if shared else None
    return ModelConfig(
        family="zamba2",
        architecture=architecture,
        hidden_size=hidden,
        vocab_size=fields.integer("vocab_size"),
        layers=layers,
        mamba=_mamba(fields, hidden, bias=bias),
        gated_delta=None,
        attention=attention,
        mlp=(
            MlpConfig(
                intermediate=fields.integer("intermediate_size", default=4 * hidden),
                activation=fields.word("hidden_act", default="gelu"),
                gated=True,
                bias=bias,
            )
            if shared
            else None
        ),
        shared=None if attention is None else _shared(fields, attention),
        norm_eps=fields.number("rms_norm_eps", default=1e-5),
        tie_embeddings=fields.flag("tie_word_embeddings", default=True),
        residual_in_fp32=False,
        max_position=positions.max_position(fields),
        **blocks.common(fields, bos=1, eos=2),
    )


def _check_fixed(fields: Fields) -> None:
    for name, served in _FIXED.items():
        if (value := fields.flag(name, default=served)) is not served:
            raise fields.wrong(
                name, f"{str(value).lower()} is not supported; supported: {str(served).lower()}"
            )


def _layers(fields: Fields) -> tuple[LayerKind, ...]:
    values = fields.items("layers_block_type", "layer_types")
    if values is None:
        raise fields.missing("layers_block_type")
    return tuple(blocks.named_kinds(fields, "layers_block_type", values, _KINDS))


def _mamba(fields: Fields, hidden: int, *, bias: bool) -> MambaConfig:
    inner = blocks.inner_width(fields, "mamba_expand", hidden)
    heads = fields.integer("n_mamba_heads")
    if inner % heads:
        raise fields.wrong("n_mamba_heads", f"must divide the inner width {inner}, found {heads}")
    mamba = MambaConfig(
        heads=heads,
        head_dim=inner // heads,
        state_size=fields.integer("mamba_d_state"),
        groups=fields.integer("mamba_ngroups", default=1),
        conv_kernel=fields.integer("mamba_d_conv", default=4, minimum=2),
        chunk_size=fields.integer("chunk_size", default=256),
        # The published code has the bias whatever `use_conv_bias` says.
        conv_bias=True,
        proj_bias=bias,
        out_bias=bias,
        # `time_step_min` bounds how step sizes are initialised, not how the model computes.
        dt_limit=blocks.dt_limit(fields),
        norm_eps=NORM_EPS,
    )
    return blocks.check_groups(fields, mamba)


def _attention(fields: Fields, hidden: int) -> AttentionConfig:
    """Read the attention, whose inputs are a row of the layer and a row of the embedding side by side."""
    heads = fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise fields.wrong("num_key_value_heads", f"{kv_heads} must divide the {heads} attention heads")
    width = 2 * hidden // heads
    if not width or 2 * hidden % heads:
        raise fields.wrong("num_attention_heads", f"{heads} must divide twice the hidden_size {hidden}")
    if (named := fields.integer("attention_head_dim", "head_dim", default=width)) != width:
        raise fields.wrong("attention_head_dim", f"{named} is not supported; supported: {width}")
    rotates = fields.flag("use_mem_rope", default=False)
    return AttentionConfig(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=width,
        bias=False,
        scale=(width / 2) ** -0.5,
        rope_theta=positions.rope_theta(fields) if rotates else None,
        rope_scaling=positions.rope_scaling(fields) if rotates else None,
    )


def _shared(fields: Fields, attention: AttentionConfig) -> SharedConfig:
    adapts = fields.flag("use_shared_attention_adapter", default=False)
    if adapts and attention.kv_heads != attention.heads:
        raise fields.wrong(
            "num_key_value_heads",
            f"{attention.kv_heads} with use_shared_attention_adapter is not supported; supported: "
            f"{attention.heads}",
        )
    return SharedConfig(
        blocks=fields.integer("num_mem_blocks", default=1),
        adapter_rank=fields.integer("adapter_rank", default=128),
        attention_adapters=adapts,
    )
