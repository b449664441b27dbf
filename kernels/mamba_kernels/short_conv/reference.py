"""The gated short convolution in plain torch on any device, float64 included.

Called by the mixer of LFM2, whose only state is the window of the convolution.
"""

import torch

from mamba_kernels.conv1d_prefill.reference import convolve_pieces
from mamba_kernels.precision import accumulator
from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.ssd_prefill.plan import ChunkPlan


def short_conv_update(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, window: torch.Tensor, plan: SlotPlan
) -> torch.Tensor:
    """Compute c * (sum_k weight[k] * input[t - K + 1 + k] + bias), [n, C], and advance windows by one token.

    `x` is [n, b | c | v] of 3 C (rows may be strided), and input = b * v, rounded to its type; `weight` is
    [K, C]; `bias` is [C]; `window` is [slabs, K-1, C], any strides. Inputs before t are read from the window
    in the row's source slot; the last K-1 inputs are written to its target and tracking slots. The result has
    the type of x.
    """
    b, c, v = x.chunk(3, 1)
    kind = accumulator(x.dtype)
    inputs = torch.cat([plan.read(window).to(x.dtype), (b * v)[:, None]], dim=1)  # [n, K, C]
    plan.write(window, inputs[:, 1:])
    y = (inputs.to(kind) * weight).sum(1)
    if bias is not None:
        y += bias
    return y.mul_(c).to(x.dtype)


def short_conv_prefill(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, window: torch.Tensor, plan: ChunkPlan
) -> torch.Tensor:
    """Compute what `short_conv_update` computes for the pieces of the plan, [T, C] in the type of x.

    `x` is [T, b | c | v]. Windows are written at the plan's targets and checkpoints, as in `conv1d_prefill`.
    """
    b, c, v = x.chunk(3, 1)
    return convolve_pieces(b * v, weight, bias, window, plan, lambda y, some: y.mul_(c[some]))
