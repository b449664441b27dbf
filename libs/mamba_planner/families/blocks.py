"""Parts that the adapters share: mixer shapes that several families spell alike, and the list of layers.

Pure functions of `Fields`; called by the family modules only.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from mamba_planner.families import positions
from mamba_planner.families.fields import LARGEST, Fields
from mamba_planner.families.quantization import QUANTIZATION, Unreadable, read_quantization
from mamba_planner.model_config import AttentionConfig, LayerKind, MambaConfig, MoeConfig

UNLIMITED_DT = (0.0, float("inf"))
# Length limit of a model without positional embeddings and without a declared limit (pure Mamba2).
NO_LIMIT = 1 << 20

_KINDS: dict[str, LayerKind] = {
    "linear_attention": "mamba",
    "mamba": "mamba",
    "mamba2": "mamba",
    "conv": "short_conv",
    "full_attention": "attention",
    "attention": "attention",
    "mlp": "mlp",
    "moe": "moe",
}


def layer_kinds(fields: Fields, name: str, values: list[Any], allowed: tuple[str, ...]) -> list[LayerKind]:
    """Translate names of layer types, new and old, to our kinds. Raises `WrongField` for an unknown one."""
    return named_kinds(
        fields, name, values, {word: kind for word, kind in _KINDS.items() if kind in allowed}, allowed
    )


def named_kinds(
    fields: Fields,
    name: str,
    values: list[Any],
    kinds: Mapping[str, LayerKind],
    supported: Iterable[str] | None = None,
) -> list[LayerKind]:
    """Translate a list of names to the kinds that they stand for. Raises `WrongField` for an unknown one.

    `supported` are the names that the message lists; None = the names of `kinds`.
    """
    if not values:
        raise fields.wrong(name, "is empty: a model has at least one layer")
    named: list[LayerKind] = []
    for index, value in enumerate(values):
        kind = kinds.get(value) if isinstance(value, str) else None
        if kind is None:
            listed = ", ".join(supported or kinds)
            raise fields.wrong(name, f"layer {index} is {value!r}; supported here: {listed}")
        named.append(kind)
    return named


def with_feed_forward(
    mixers: list[LayerKind], feed_forward: list[LayerKind]
) -> tuple[tuple[LayerKind, ...], tuple[int, ...]]:
    """Return decoder layers "mixer, then feed-forward" as blocks, and the number of each block's layer."""
    layers: list[LayerKind] = []
    owners: list[int] = []
    for index, (mixer, second) in enumerate(zip(mixers, feed_forward, strict=True)):
        layers += [mixer, second]
        owners += [index, index]
    return tuple(layers), tuple(owners)


def mamba_d_mixer(fields: Fields, norm_eps: float, inner: int | None = None, **more: Any) -> MambaConfig:
    """Read the mixer as Bamba, Granite hybrid and Falcon-H1 spell it (`mamba_n_heads`, `mamba_d_state`, …).

    `inner` is H * P if the family declares it apart from `mamba_expand`.
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
            # These families have one field for the activation of convolution and feed-forward.
            activation=fields.word("hidden_act", default="silu"),
            **more,
        ),
    )


def inner_width(fields: Fields, name: str, hidden: int) -> int:
    """Return H * P from the expansion factor `name`. Raises `WrongField` if that is no width."""
    inner = fields.number(name, default=2) * hidden
    if not 1 <= inner <= LARGEST:
        raise fields.wrong(name, f"times the hidden_size {hidden} must be a width, found {inner:g}")
    return int(inner)


def check_groups(fields: Fields, mamba: MambaConfig) -> MambaConfig:
    """Return `mamba` if its groups divide its heads, which share B and C by group. Raises `WrongField`."""
    if mamba.heads % mamba.groups:
        raise fields.wrong("n_groups", f"{mamba.groups} groups must divide {mamba.heads} heads")
    return mamba


def dt_limit(fields: Fields) -> tuple[float, float]:
    low, high = fields.numbers("time_step_limit", "mamba_dt_limit", length=2, default=UNLIMITED_DT)
    return low, high


def attention(
    fields: Fields, *, kv_heads: int | None = None, head_dim: int = 0, **more: Any
) -> AttentionConfig:
    """Read grouped-query attention from the names all families share.

    Args:
        fields: the configuration.
        kv_heads: default as in the published classes; None = as many as heads.
        head_dim: default as in the published classes; 0 = the hidden size divided by the heads.
        **more: further fields of `AttentionConfig`.
    """
    heads = fields.integer("num_attention_heads")
    if kv_heads is None or fields.has("num_key_value_heads"):
        # In every family, null means as many as heads.
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
    if more.get("rope_theta") is not None:
        more["rope_scaling"] = positions.rope_scaling(fields)
    return AttentionConfig(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        bias=fields.flag("attention_bias", default=False),
        scale=scale,
        **more,
    )


def common(fields: Fields, bos: int | None, eos: int | None) -> dict[str, Any]:
    """Read the fields that every family spells alike. The registry fills in `parameters`.

    `bos` and `eos` are the defaults of the published classes.
    """
    dtype = fields.word("dtype", "torch_dtype", default="float32").removeprefix("torch.")
    if dtype not in ("float32", "bfloat16", "float16"):
        raise fields.wrong("dtype", f"{dtype!r} is not supported; supported: float32, bfloat16, float16")
    return {
        "dtype": dtype,
        "bos_token_id": fields.integer("bos_token_id", default=None, absent=bos, minimum=0),
        "eos_token_ids": fields.tokens("eos_token_id", default=() if eos is None else (eos,)),
        "parameters": 0,
        "quantized": _unreadable(fields),
    }


def _unreadable(fields: Fields) -> str | None:
    """Return which quantized weights of the checkpoint cannot be read; None = all can be."""
    try:
        for name in QUANTIZATION:
            read_quantization(fields.section(name))
    except Unreadable as what:
        return str(what)
    return None


def check_experts(fields: Fields, moe: MoeConfig) -> MoeConfig:
    """Return `moe` if its numbers of experts and groups fit together.

    Raises `WrongField` if a token takes more experts or groups than there are, or if groups differ in size.
    """
    if moe.experts_per_token > moe.experts:
        raise fields.wrong(
            "num_experts_per_tok", f"{moe.experts_per_token} of {moe.experts} experts cannot be taken"
        )
    if moe.experts % moe.groups:
        raise fields.wrong("n_group", f"{moe.groups} groups do not divide {moe.experts} experts")
    if moe.groups_per_token > moe.groups:
        raise fields.wrong("topk_group", f"{moe.groups_per_token} of {moe.groups} groups cannot be taken")
    in_groups = moe.groups_per_token * (moe.experts // moe.groups)
    if moe.experts_per_token > in_groups:
        raise fields.wrong(
            "num_experts_per_tok",
            f"{moe.experts_per_token} experts are more than the {in_groups} of a token's groups",
        )
    return moe
