"""Step size dt of the recurrence, computed from its raw projection; shared by prefill and decode."""

import torch

from mamba_kernels.elementwise import softplus


def step_size(
    raw: torch.Tensor, bias: torch.Tensor, limit: tuple[float, float], kind: torch.dtype
) -> torch.Tensor:
    """Compute softplus(raw + bias), clamped to `limit`, in the type `kind`; `raw` is [T, H], `bias` [H]."""
    return softplus(raw.to(kind) + bias).clamp_(*limit)
