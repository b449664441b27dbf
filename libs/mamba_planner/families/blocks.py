"""What the adapters share: the mixer shapes several families spell alike, and the list of layers.

Pure functions of `Fields`; called by the family modules only.
"""

from typing import Any

from mamba_planner.families.fields import LARGEST, Fields
from mamba_planner.model_config import AttentionConfig, LayerKind, MambaConfig, MoeConfig

UNLIMITED_DT = (0.0, float("inf"))
# A model without positional embeddings and without a declared limit (pure Mamba2) has none of its own.
NO_LIMIT = 1 << 20

QUANTIZATION = ("quantization_config", "compression_config")
"""Where configurations say that weights are quantized; the second by its older name."""

_KINDS: dict[str, LayerKind] = {
    "linear_attention": "mamba",
    "mamba": "mamba",
    "mamba2": "mamba",
    "full_attention": "attention",
    "attention": "attention",
    "mlp": "mlp",
    "moe": "moe",
}


def layer_kinds(fields: Fields, name: str, values: list[Any], allowed: tuple[str, ...]) -> list[LayerKind]:
    """Words for layer types, new and old -> our kinds. Raises `WrongField` at the first unknown one."""
    if not values:
        raise fields.wrong(name, "is empty: a model has at least one layer")
    kinds: list[LayerKind] = []
    for index, value in enumerate(values):
        kind = _KINDS.get(value) if isinstance(value, str) else None
        if kind is None or kind not in allowed:
            raise fields.wrong(name, f"layer {index} is {value!r}; supported here: {', '.join(allowed)}")
        kinds.append(kind)
    return kinds


def with_feed_forward(
    mixers: list[LayerKind], feed_forward: list[LayerKind]
) -> tuple[tuple[LayerKind, ...], tuple[int, ...]]:
    """Decoder layers "mixer, then feed-forward" -> blocks in order, and the layer each belongs to."""
    layers: list[LayerKind] = []
    owners: list[int] = []
    for index, (mixer, second) in enumerate(zip(mixers, feed_forward, strict=True)):
        layers += [mixer, second]
        owners += [index, index]
    return tuple(layers), tuple(owners)


def mamba_d_mixer(fields: Fields, norm_eps: float, inner: int | None = None, **more: Any) -> MambaConfig:
    """The mixer as Bamba, Granite hybrid and Falcon-H1 spell it (`mamba_n_heads`, `mamba_d_state`, …).

    `inner` is H * P when the family declares it apart from `mamba_expand`.
    """
    heads = fields.integer("mamba_n_heads", "mamba_num_heads")
    if inner is None:
        inner = inner_width(fields, "mamba_expand", fields.integer("hidden_size"))
    if inner % heads:
        raise fields.wrong("mamba_n_heads", f"must divide the inner width {inner}, found {heads}")
    head_dim = fields.integer_or_auto("mamba_d_head", auto=inner // heads)
    if heads * head_dim != inner:
        raise fields.wrong(
            "mamba_d_head", f"heads {heads} x head dimension {head_dim} must be the inner width {inner}"
        )
    return check_groups(
        fields,
        MambaConfig(
            heads=heads,
            head_dim=head_dim,
            state_size=fields.integer("mamba_d_state", "ssm_state_size"),
            groups=fields.integer("mamba_n_groups", "n_groups"),
            conv_kernel=fields.integer("mamba_d_conv", "conv_kernel", minimum=2),
            chunk_size=fields.integer("mamba_chunk_size", "chunk_size", default=256),
            conv_bias=fields.flag("mamba_conv_bias", "use_conv_bias", default=True),
            proj_bias=fields.flag("mamba_proj_bias", default=False),
            dt_limit=dt_limit(fields),
            norm_eps=norm_eps,
            # One field of these families names it for the convolution and the feed-forward.
            activation=fields.word("hidden_act", default="silu"),
            **more,
        ),
    )


def inner_width(fields: Fields, name: str, hidden: int) -> int:
    """H * P by the expansion factor `name`. Raises `WrongField` when that is no width."""
    inner = fields.number(name, default=2) * hidden
    if not 1 <= inner <= LARGEST:
        raise fields.wrong(name, f"times the hidden_size {hidden} must be a width, found {inner:g}")
    return int(inner)


def check_groups(fields: Fields, mamba: MambaConfig) -> MambaConfig:
    """Heads share B and C by group, so groups divide heads. Raises `WrongField`."""
    if mamba.heads % mamba.groups:
        raise fields.wrong("n_groups", f"{mamba.groups} groups must divide {mamba.heads} heads")
    return mamba


def dt_limit(fields: Fields) -> tuple[float, float]:
    low, high = fields.numbers("time_step_limit", "mamba_dt_limit", length=2, default=UNLIMITED_DT)
    return low, high


def attention(
    fields: Fields, *, kv_heads: int | None = None, head_dim: int = 0, **more: Any
) -> AttentionConfig:
    """Grouped-query attention under the names all families share.

    kv_heads, head_dim: of a configuration that leaves the field out, as the published classes have them;
    None = as many as heads, 0 = the hidden size over the heads.
    """
    heads = fields.integer("num_attention_heads")
    if kv_heads is None or fields.has("num_key_value_heads"):
        # null stands for as many as heads, in whatever family.
        kv_heads = fields.integer("num_key_value_heads", default=heads)
    elif heads % kv_heads:
        kv_heads = fields.integer("num_key_value_heads")
    if heads % kv_heads:
        raise fields.wrong("num_key_value_heads", f"{kv_heads} must divide the {heads} attention heads")
    head_dim = fields.integer("head_dim", "attention_head_dim", default=head_dim, minimum=0)
    head_dim = head_dim or fields.integer("hidden_size") // heads
    if not head_dim:
        raise fields.wrong(
            "num_attention_heads", f"{heads} heads are more than the hidden_size without head_dim"
        )
    scale = more.pop("scale", None) or head_dim**-0.5
    return AttentionConfig(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        bias=fields.flag("attention_bias", default=False),
        scale=scale,
        **more,
    )


def rope_theta(fields: Fields, default: float = 10_000.0) -> float:
    """Read it from the section of rotary positions or the older flat field.

    default: of a configuration that leaves it out, as the published classes have it.
    Raises `WrongField` for scaled variants (yarn, linear, …): serving them as plain RoPE would be wrong.
    """
    for scaling in (fields.section("rope_parameters"), fields.section("rope_scaling")):
        kind = scaling.word("rope_type", "type", default="default")
        if kind != "default":
            raise fields.wrong("rope_parameters", f"rope type {kind!r} is not supported; supported: default")
    return _rotary(fields).number("rope_theta", default=fields.number("rope_theta", default=default))


def rotary_fraction(fields: Fields, default: float) -> float:
    """Read the share of each head that is rotated from that section alone.

    default: of a section without it. Families that rotate a part of each head read the older flat field for
    it; the others rotate all of it whatever that field says.
    """
    share = _rotary(fields).number("partial_rotary_factor", default=default)
    if not 0 < share <= 1:
        raise fields.wrong("partial_rotary_factor", f"must be above 0 and at most 1, is {share:g}")
    return share


def _rotary(fields: Fields) -> Fields:
    """The section under its new name, or else under the older one."""
    return fields.section("rope_parameters") or fields.section("rope_scaling")


def common(fields: Fields, bos: int | None, eos: int | None) -> dict[str, Any]:
    """The fields every family spells alike. `parameters` is filled in by the registry.

    bos, eos: of a configuration that leaves the field out, as the published classes have them.
    """
    dtype = fields.word("dtype", "torch_dtype", default="float32").removeprefix("torch.")
    if dtype not in ("float32", "bfloat16", "float16"):
        raise fields.wrong("dtype", f"{dtype!r} is not supported; supported: float32, bfloat16, float16")
    return {
        "dtype": dtype,
        "bos_token_id": fields.integer("bos_token_id", default=None, absent=bos, minimum=0),
        "eos_token_ids": fields.tokens("eos_token_id", default=() if eos is None else (eos,)),
        "parameters": 0,
        "quantized": _quantized(fields),
    }


def _quantized(fields: Fields) -> str | None:
    for name in QUANTIZATION:
        if section := fields.section(name):
            method = section.word("quant_method", default="a method of no name")
            return None if _is_fp8(method, section) else method
    return None


def _is_fp8(method: str, section: Fields) -> bool:
    """What is quantized is FP8 with scales, which is read as the numbers that it stands for."""
    match method:
        case "fp8":
            return section.word("fmt", default="e4m3") == "e4m3"
        case "modelopt":
            return section.word("quant_algo", default="") == "FP8"
        case "compressed-tensors":
            weights = [group.section("weights") for group in section.section("config_groups").sections()]
            return bool(weights) and all(
                each.word("type", default="") == "float" and each.integer("num_bits", default=0) == 8
                for each in weights
            )
        case _:
            return False


def check_experts(fields: Fields, made: MoeConfig) -> MoeConfig:
    """The same experts, if each token can have as many as it takes. Raises `WrongField`."""
    if made.experts_per_token > made.experts:
        raise fields.wrong(
            "num_experts_per_tok", f"{made.experts_per_token} of {made.experts} experts cannot be taken"
        )
    if made.experts % made.groups:
        raise fields.wrong("n_group", f"{made.groups} groups do not divide {made.experts} experts")
    if made.groups_per_token > made.groups:
        raise fields.wrong("topk_group", f"{made.groups_per_token} of {made.groups} groups cannot be taken")
    in_groups = made.groups_per_token * (made.experts // made.groups)
    if made.experts_per_token > in_groups:
        raise fields.wrong(
            "num_experts_per_tok",
            f"{made.experts_per_token} experts are more than the {in_groups} of a token's groups",
        )
    return made
