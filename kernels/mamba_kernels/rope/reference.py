"""Rotary positions in plain torch on any device. Called by attention layers before keys are written."""

import torch

from mamba_kernels.precision import accumulator


def frequencies(theta: float, width: int, device: torch.device) -> torch.Tensor:
    """Return radians per token, [width / 2] float32, for each pair of a head's `width` rotated elements."""
    return 1.0 / theta ** (torch.arange(0, width, 2, dtype=torch.float32, device=device) / width)


def turns(
    positions: torch.Tensor, frequencies: torch.Tensor, factor: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosine and sine of each row's angles times `factor`, [T, width / 2] float32.

    `positions` are [T] int32 or int64. The angle is rounded to float32 as in training; its cosine is computed
    in float64, so that it has the same bits at any place of the tensor.
    """
    angles = (positions.float().unsqueeze(1) * frequencies).double()
    cos, sin = angles.cos(), angles.sin()
    if factor != 1:
        cos, sin = cos * factor, sin * factor
    return cos.float(), sin.float()


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotate each head of each row in place (Su et al. 2021, eq. 34, with pairs half a width apart).

    `x` is [T, heads, head_dim], rows and heads may be strided; `cos` and `sin` are [T, h] with 2 h <=
    head_dim. Elements after the first 2 h are unchanged.
    """
    half = cos.shape[1]
    wide = accumulator(x.dtype)
    first, second = x[..., :half].to(wide), x[..., half : 2 * half].to(wide)
    c, s = cos.unsqueeze(1).to(wide), sin.unsqueeze(1).to(wide)
    turned = torch.cat([first * c - second * s, second * c + first * s], -1)
    x[..., : 2 * half] = turned.to(x.dtype)
