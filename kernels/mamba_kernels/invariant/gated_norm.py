"""`gated_norm` with the same bits for a row in every batch. Called by the Mamba2 mixer."""

import torch

from mamba_kernels.elementwise import silu
from mamba_kernels.precision import accumulator


def gated_norm_by_row(
    y: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    groups: int,
    norm_first: bool = False,
) -> torch.Tensor:
    """Compute RMSNorm of y * silu(gate) over each of `groups` equal parts of the last dimension.

    With `norm_first` compute RMSNorm of the parts of y, times silu(gate). `y` and `gate` are [T, d] (rows may
    be strided); `weight` is [d], or None for the gate alone. The result is [T, d] in the type of `gate`.
    Every sum runs over contiguous elements of one row.
    """
    gated = silu(gate.to(accumulator(gate.dtype)).contiguous()).mul_(y)
    if weight is None:
        return gated.to(gate.dtype)
    parts = gated.view(*gated.shape[:-1], groups, -1)
    normed = parts
    if norm_first:
        normed = y.to(gated.dtype).contiguous().view(parts.shape)
    parts.mul_(torch.rsqrt(normed.square().mean(-1, keepdim=True).add_(eps)))
    return gated.mul_(weight).to(gate.dtype)
