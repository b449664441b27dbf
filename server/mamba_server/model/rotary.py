"""Frequencies of rotary positions, scaled as a configuration says. Computed once, when a model is built."""

import math
from dataclasses import dataclass

import torch

from mamba_kernels.rope import frequencies
from mamba_planner.model_config import AttentionConfig, RopeScaling
from mamba_server.model.checkpoint.errors import UnsupportedModel


@dataclass(frozen=True, slots=True)
class Rotation:
    """How queries and keys are rotated by their positions."""

    frequencies: torch.Tensor
    """[rotated / 2] float32: radians per token of each pair."""
    factor: float
    """Factor on cosines and sines."""


def rotation_of(attention: AttentionConfig | None, device: torch.device) -> Rotation | None:
    """Return the rotation of a model's queries and keys; None = it has no positions.

    Raises UnsupportedModel for a list of factors that does not fit the heads.
    """
    if attention is None or attention.rope_theta is None:
        return None
    theta, width = attention.rope_theta, attention.rotated
    plain = frequencies(theta, width, device)
    if (scaling := attention.rope_scaling) is None:
        return Rotation(plain, 1.0)
    match scaling.kind:
        case "dynamic":  # changes nothing up to the trained length, which is the limit
            scaled = plain
        case "linear":
            scaled = plain / scaling.factor
        case "llama3":
            scaled = _by_wavelength(plain, scaling)
        case "yarn":
            scaled = _by_parts(plain, theta, width, scaling)
        case "longrope":
            if len(scaling.divisors) != len(plain):
                raise UnsupportedModel(
                    f"rope_parameters: short_factor has {len(scaling.divisors)} numbers, and {len(plain)} "
                    "pairs of a head are rotated"
                )
            divisors = torch.tensor(scaling.divisors, dtype=torch.float32, device=device)
            scaled = 1.0 / (divisors / plain)
    return Rotation(scaled, scaling.attention_factor)


def _by_wavelength(plain: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Divide slow frequencies, keep quick ones, and blend those between (Llama 3.1)."""
    turns = scaling.trained * plain / (2 * math.pi)  # of a text of the trained length
    share = ((turns - scaling.low) / (scaling.high - scaling.low)).clamp(0, 1)
    return (1 - share) * plain / scaling.factor + share * plain


def _by_parts(plain: torch.Tensor, theta: float, width: int, scaling: RopeScaling) -> torch.Tensor:
    """Divide the pairs that turn seldom, keep those that turn often, and ramp between (Peng et al. 2023)."""

    def place(turns: float) -> float:
        return width * math.log(scaling.trained / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first, last = place(scaling.high), place(scaling.low)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, width - 1)
    span = last - first or 0.001
    pairs = torch.arange(width // 2, dtype=torch.float32, device=plain.device)
    divided = ((pairs - first) / span).clamp(0, 1)
    return plain / scaling.factor * divided + plain * (1 - divided)
