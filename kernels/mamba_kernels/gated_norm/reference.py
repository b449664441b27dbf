"""Gated grouped RMSNorm in plain torch on any device, float64 included. Called by the recurrent mixers."""

import torch
import torch.nn.functional as F

from mamba_kernels.precision import accumulator


def gated_norm(
    y: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    groups: int,
    norm_first: bool = False,
) -> torch.Tensor:
    """Compute RMSNorm of y * silu(gate) over each of `groups` equal parts of the last dimension.

    With `norm_first` compute RMSNorm of the parts of y, times silu(gate). `y` and `gate` are [T, d] (rows may
    be strided); `weight` is [d], or [d / groups] shared by all parts, or None for the gate alone. Statistics
    are at least float32; the result is [T, d] in the type of `gate`.
    """
    kind = accumulator(gate.dtype)
    gated = F.silu(gate.to(kind)).mul_(y)
    if weight is None:
        return gated.to(gate.dtype)
    parts = gated.view(*gated.shape[:-1], groups, -1)
    normed = y.to(kind).unflatten(-1, (groups, -1)) if norm_first else parts
    parts.mul_(torch.rsqrt(normed.square().mean(-1, keepdim=True).add_(eps)))
    parts.mul_(weight.view(-1, parts.shape[-1]))
    return gated.to(gate.dtype)
