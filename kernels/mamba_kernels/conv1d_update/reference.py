"""Decode step of the causal depthwise convolution in plain torch on any device, float64 included.

Called by the Mamba2 mixer for the rows that decode, before `state_update`.
"""

import torch
import torch.nn.functional as F

from mamba_kernels.precision import accumulator
from mamba_kernels.slot_plan import SlotPlan


def conv1d_update(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, window: torch.Tensor, plan: SlotPlan
) -> torch.Tensor:
    """Compute silu(sum_k weight[k] * input[t - K + 1 + k] + bias), [n, C], and advance windows by one token.

    Each of the n rows of `x` is the token t of one sequence. `x` is [n, C] (rows may be strided); `weight` is
    [K, C]; `bias` is [C]; `window` is [slabs, K-1, C], any strides. The K-1 inputs before t are read from the
    window in the row's source slot; the last K-1 inputs, before activation, are written to its target and
    tracking slots. The result has the type of x.
    """
    kind = accumulator(x.dtype)
    past = plan.read(window)  # [n, K-1, C]
    inputs = torch.cat([past.to(x.dtype), x[:, None]], dim=1)  # [n, K, C]
    plan.write(window, inputs[:, 1:])
    y = (inputs.to(kind) * weight).sum(1)
    if bias is not None:
        y += bias
    return F.silu(y, inplace=True).to(x.dtype)
