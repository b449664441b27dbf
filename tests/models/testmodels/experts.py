"""Random experts, and what they make of rows, pair by pair."""

import torch
import torch.nn.functional as F

from mamba_kernels.moe import Experts


def experts(
    count: int, d: int, inner: int, *, gated: bool, activation: str, dtype: torch.dtype = torch.float64
) -> Experts:
    g = torch.Generator().manual_seed(count + d + inner)

    def rand(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, generator=g, dtype=torch.float64) / shape[-1] ** 0.5).to(dtype)

    return Experts(rand(count, inner * (2 if gated else 1), d), rand(count, d, inner), activation, gated)


def inputs(
    n: int, k: int, count: int, d: int, dtype: torch.dtype = torch.float64, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, chosen and weights; some experts are nobody's where there are many."""
    g = torch.Generator().manual_seed(seed)
    popular = torch.randn(count, generator=g) * 2
    chosen = (torch.randn(n, count, generator=g) + popular).topk(k, -1).indices.to(torch.int32)
    x = torch.randn(n, d, generator=g, dtype=torch.float64).to(dtype)
    return x, chosen, torch.rand(n, k, generator=g, dtype=torch.float32)


def pair_by_pair(x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, of: Experts) -> torch.Tensor:
    """[n, d] float64."""
    out = torch.zeros(x.shape, dtype=torch.float64)
    functions = {"silu": F.silu, "relu": F.relu, "relu2": lambda y: F.relu(y).square()}
    for row in range(len(x)):
        for which, weight in zip(chosen[row].tolist(), weights[row].tolist(), strict=True):
            y = of.up[which].double() @ x[row].double()
            if of.gated:
                gate, y = y.chunk(2)
                y = functions[of.activation](gate) * y
            else:
                y = functions[of.activation](y)
            out[row] += weight * (of.down[which].double() @ y)
    return out
