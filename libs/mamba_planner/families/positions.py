"""Rotary positions as configurations describe them: base, rotated share, and scaling for long texts.

Pure functions of `Fields`; called by the family modules and by `blocks`. A field that is not understood and
may change the angles is refused by its name.
"""

import math

from mamba_planner.families.fields import Fields
from mamba_planner.model_config import RopeScaling

_KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
_FIELDS = {
    "rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "original_max_position_embeddings",
    "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "low_freq_factor",
    "high_freq_factor", "short_factor", "long_factor",
    # Sections of positions of pictures; a text token has the same position in each.
    "mrope_section", "mrope_interleaved",
}  # fmt: skip


def rope_theta(fields: Fields, default: float = 10_000.0) -> float:
    """Read the base of rotary positions from their section or the older flat field.

    `default` is the base in the published classes.
    """
    return _section(fields).number("rope_theta", default=fields.number("rope_theta", default=default))


def rope_theta_or_none(fields: Fields, default: float = 10_000.0) -> float | None:
    """Read the base as `rope_theta` does, but return None where it is null: attention without positions."""
    section = _section(fields)
    holder = section if section.has("rope_theta") else fields
    absent = holder.has("rope_theta") and holder.number("rope_theta", default=None) is None
    return None if absent else rope_theta(fields, default)


def rotary_fraction(fields: Fields, default: float) -> float:
    """Read the rotated share of each head from the section of rotary positions alone.

    `default` is the share if the section lacks it. Families that rotate a part of each head pass the value of
    the older flat field; the others rotate the whole head whatever that field says.
    """
    share = _section(fields).number("partial_rotary_factor", default=default)
    if not 0 < share <= 1:
        raise fields.wrong("partial_rotary_factor", f"must be above 0 and at most 1, is {share:g}")
    return share


def rope_scaling(fields: Fields) -> RopeScaling | None:
    """Read the scaling of rotary positions; None = plain positions. Raises `WrongField`, `MissingField`."""
    section = _section(fields)
    kind = section.word("rope_type", "type", default="default")
    if kind not in _KINDS:
        raise fields.wrong(
            "rope_parameters", f"rope type {kind!r} is not supported; supported: {', '.join(_KINDS)}"
        )
    if unknown := section.others(_FIELDS):
        raise section.wrong(unknown[0], "is not understood, and may change the positions of tokens")
    trained = fields.integer("max_position_embeddings")
    if kind == "default":
        return None
    if kind == "dynamic":
        return RopeScaling(kind="dynamic", trained=trained)
    if kind == "linear":
        return RopeScaling(kind="linear", trained=trained, factor=_factor(section, None))
    # The outer field, where there is one, takes precedence.
    inner = section.integer("original_max_position_embeddings", default=trained, minimum=2)
    original = fields.integer("original_max_position_embeddings", default=inner, minimum=2)
    if kind == "llama3":
        low, high = section.number("low_freq_factor"), section.number("high_freq_factor")
        if not 0 < low < high:
            raise section.wrong(
                "low_freq_factor", f"{low:g} must be above 0 and below high_freq_factor {high:g}"
            )
        return RopeScaling(kind="llama3", trained=original, factor=_factor(section, None), low=low, high=high)
    factor = _factor(section, trained / original)
    if kind == "yarn":
        if section.number("rope_theta", default=fields.number("rope_theta", default=2.0)) <= 1:
            raise section.wrong("rope_theta", "must be above 1")
        return RopeScaling(
            kind="yarn",
            trained=original,
            factor=factor,
            low=section.number("beta_slow", default=1.0) or 1.0,
            high=section.number("beta_fast", default=32.0) or 32.0,
            truncate=section.flag("truncate", default=True),
            attention_factor=_yarn_attention(section, factor),
        )
    return _longrope(section, original, factor)


def without_window(fields: Fields, longest: int) -> int:
    """Return `longest`, the number of tokens that a model is meant for, if all of them are attended to.

    Raises `WrongField` for a model whose attention only sees the last tokens, which is not supported.
    """
    window = fields.integer("sliding_window", default=None)
    if window is not None and window < longest and fields.flag("use_sliding_window", default=True):
        raise fields.wrong("sliding_window", f"attention to the last {window} tokens alone is not supported")
    return longest


def max_position(fields: Fields) -> int:
    """Return how many tokens the model is meant for, with the factor of scaled positions.

    Raises `WrongField` for a model whose attention only sees the last tokens, which is not supported.
    """
    longest = without_window(fields, fields.integer("max_position_embeddings"))
    scaling = rope_scaling(fields)
    if scaling is None:
        return longest
    if scaling.kind == "yarn":
        return max(longest, int(scaling.trained * scaling.factor))
    return scaling.limit or longest


def _section(fields: Fields) -> Fields:
    """Return the section of rotary positions; the older name takes precedence. Raises `WrongField`."""
    section = fields.section("rope_scaling") or fields.section("rope_parameters")
    if section.sections():
        raise fields.wrong("rope_parameters", "positions by type of layer are not supported")
    return section


def _factor(section: Fields, otherwise: float | None) -> float:
    """Read how many times longer texts may be than before the scaling. Raises `WrongField`.

    `otherwise` is its value if the field is null or absent; None = the field is required.
    """
    factor = section.number("factor") if otherwise is None else section.number("factor", default=otherwise)
    if not 1 <= factor <= 1e6:
        raise section.wrong("factor", f"must be at least 1, is {factor:g}")
    return factor


def _yarn_attention(section: Fields, factor: float) -> float:
    """Return the configured factor on cosines and sines, or else the one that the paper suggests."""
    attention_factor = section.number("attention_factor", default=None)
    if attention_factor is not None:
        return attention_factor

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    numerator = section.number("mscale", default=0.0)
    denominator = section.number("mscale_all_dim", default=0.0)
    return scale(numerator) / scale(denominator) if numerator and denominator else scale(1.0)


def _longrope(section: Fields, original: int, factor: float) -> RopeScaling:
    factors = section.items("short_factor")
    if factors is None:
        raise section.missing("short_factor")
    short = section.numbers("short_factor", length=len(factors), default=())
    if any(not 0 < each < math.inf for each in short):
        raise section.wrong("short_factor", "must hold numbers above 0")
    attention = section.number("attention_factor", default=None)
    if attention is None:
        attention = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return RopeScaling(kind="longrope", trained=original, attention_factor=attention, divisors=short)
