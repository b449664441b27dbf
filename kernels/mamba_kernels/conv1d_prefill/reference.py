"""Causal depthwise convolution in plain torch on any device, float64 included.

Called by the Mamba2 mixer for the rows that prefill, before `ssd_prefill` and with the same plan, so that
window and SSM part of a state have the same depth.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from mamba_kernels.precision import accumulator
from mamba_kernels.ssd_prefill.plan import ChunkPlan

Finish = Callable[[torch.Tensor, slice], torch.Tensor]
"""Function of sums [n, C], which it may overwrite, and of their rows in the batch; returns results [n, C]."""
BLOCK_ELEMENTS = 1 << 17
"""Elements that are processed at once: few enough that the K passes run in the cache."""


def conv1d_prefill(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, window: torch.Tensor, plan: ChunkPlan
) -> torch.Tensor:
    """Compute silu(sum_k weight[k] * input[t - K + 1 + k] + bias), [T, C] in the type of x; write `window`.

    `x` is [T, C] (rows may be strided); `weight` is [K, C]; `bias` is [C]; `window` is [slabs, K-1, C], any
    strides. A piece is the part of one sequence in this batch. The K-1 inputs before it are read from the
    window in its source slot, and are zero for a fresh sequence. The last K-1 inputs, before activation, are
    written to the slot of each checkpoint inside the piece and to the target slot at its end; where there are
    fewer than K-1 rows up to there, the rest comes from the window that was read.
    """
    return convolve_pieces(x, weight, bias, window, plan, lambda y, _: F.silu(y, inplace=True))


def convolve_pieces(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    window: torch.Tensor,
    plan: ChunkPlan,
    finish: Finish,
) -> torch.Tensor:
    """Return what `finish` makes of the sums of `conv1d_prefill`, [T, C] in the type of x.

    `window` is written as by `conv1d_prefill`.
    """
    K = weight.shape[0]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    past = plan.slots.read(window).to(x.dtype)  # a copy: targets may be written before later pieces are read
    for piece, target in enumerate(plan.slots.target_slots):
        first, end = plan.piece_start[piece], plan.piece_start[piece + 1]
        inputs = torch.cat([past[piece], x[first:end]])  # [K-1 + rows, C]
        _convolve(inputs, weight, bias, out[first:end], finish, first)
        for rows, slot in [*plan.checkpoints(piece), (end - first, target)]:
            window[slot] = inputs[rows : rows + K - 1]
    return out


def _convolve(
    inputs: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    finish: Finish,
    row: int,
) -> None:
    """Write the results of one piece into `out`, whose first row is row number `row` of the batch.

    `inputs` are the rows of the piece, after the K-1 rows before it. `finish` turns sums into results, as the
    activation does.
    """
    kind = accumulator(inputs.dtype)
    rows, channels = out.shape
    block = max(1, BLOCK_ELEMENTS // channels)
    for first in range(0, rows, block):
        end = min(first + block, rows)
        part = inputs[first : end + weight.shape[0] - 1].to(kind)
        y = part[: end - first] * weight[0]
        for k in range(1, weight.shape[0]):
            y.addcmul_(part[k : k + end - first], weight[k])
        if bias is not None:
            y += bias
        out[first:end] = finish(y, slice(row + first, row + end))
