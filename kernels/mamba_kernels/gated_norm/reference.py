"""Gated grouped RMSNorm in plain torch, any device, float64-capable. Called by the Mamba2 mixer."""

import torch
import torch.nn.functional as F

from mamba_kernels.precision import accumulator


def gated_norm(
    y: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor | None, eps: float, groups: int
) -> torch.Tensor:
    """RMSNorm of y * silu(gate) over each of `groups` equal parts of the last dimension.

    y, gate: [T, d] (rows may be strided); weight: [d], or None for the gate alone. Statistics are at least
    float32; returns [T, d] in the type of `gate`.
    """
    kind = accumulator(gate.dtype)
    gated = F.silu(gate.to(kind)).mul_(y)
    if weight is None:
        return gated.to(gate.dtype)
    parts = gated.view(*gated.shape[:-1], groups, -1)
    parts.mul_(torch.rsqrt(parts.square().mean(-1, keepdim=True).add_(eps)))
    return gated.mul_(weight).to(gate.dtype)
