"""RMSNorm in plain torch on any device, float64 included. Called before every mixer and before the head."""

import torch

from mamba_kernels.precision import accumulator


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    added: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
    groups: int = 1,
) -> torch.Tensor:
    """Compute x = x + added and y = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019, eq. 4).

    The mean is over each of `groups` equal parts of the last dimension. `x` is [..., d], written if there is
    `added`, of the same shape; `weight` is [d]. Statistics and the product with the weight are at least
    float32; y has the type `dtype`, by default the type of `weight`, so a float32 residual stream enters a
    bfloat16 mixer without a second pass.
    """
    if added is not None:
        x.add_(added)
    wide = x.to(accumulator(x.dtype))
    parts = wide.unflatten(-1, (groups, -1))
    scale = torch.rsqrt(parts.square().mean(-1, keepdim=True).add_(eps))
    normed: torch.Tensor = (parts * scale).flatten(-2)
    return normed.mul_(weight).to(dtype or weight.dtype)
