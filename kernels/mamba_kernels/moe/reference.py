"""A mixture of experts in plain torch, any device, without a read by the host. The truth in float64."""

import torch
import torch.nn.functional as F

from mamba_kernels.moe.assignment import Assignment
from mamba_kernels.moe.experts import Experts

MOST_ROWS = 64
GATHERED = 1 << 24
"""Elements of weights that are copied together."""


def activated(x: torch.Tensor, name: str) -> torch.Tensor:
    """By its name in `Experts`. Raises ValueError."""
    match name:
        case "silu":
            return F.silu(x)
        case "relu":
            return F.relu(x)
        case "relu2":
            return F.relu(x).square()
    raise ValueError(f"activation {name!r} of experts is not supported; supported: silu, relu, relu2")


def rows_of_block(pairs: int, experts: int) -> int:
    """About half of what an expert has on average, a power of two: few places are empty."""
    return min(MOST_ROWS, 1 << max(0, (pairs // experts).bit_length() - 1))


def moe(x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, experts: Experts) -> torch.Tensor:
    """Sum over a row's experts of their outputs, weighted: [n, d] in the type of x.

    x: [n, d]; chosen: [n, k] int32; weights: [n, k], of `route`.
    """
    n, k = chosen.shape
    rows = rows_of_block(n * k, experts.count)
    places = Assignment.of(chosen, experts.count, rows)
    pair = places.pair.long().clamp(min=0)
    inputs = x[pair.div(k, rounding_mode="floor")].unflatten(0, (-1, rows))
    of_block = places.expert.long().clamp(min=0)
    together = max(1, GATHERED // experts.up[0].numel())
    outputs = torch.cat(
        [
            _through(part, which, experts)
            for part, which in zip(inputs.split(together), of_block.split(together), strict=True)
        ]
    ).flatten(0, 1)
    # Where a pair lies; places without one write to a row beyond the last, which is dropped.
    to = torch.where(places.pair < 0, n * k, places.pair.long())
    at = torch.zeros(n * k + 1, dtype=torch.int64, device=x.device)
    at.scatter_(0, to, torch.arange(len(to), device=x.device))
    of_row = outputs[at[: n * k]].unflatten(0, (n, k))
    # 16-bit outputs times float32 weights are float32.
    total: torch.Tensor = (of_row * weights[..., None]).sum(1)
    return total.to(x.dtype)


def _through(x: torch.Tensor, which: torch.Tensor, experts: Experts) -> torch.Tensor:
    """x: [b, r, d], each block through its expert."""
    inner = x @ experts.up[which].transpose(1, 2)
    if experts.gated:
        gate, inner = inner.chunk(2, -1)
        inner = activated(gate, experts.activation) * inner
    else:
        inner = activated(inner, experts.activation)
    return inner @ experts.down[which].transpose(1, 2)
