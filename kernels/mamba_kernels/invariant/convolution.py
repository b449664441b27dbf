"""The causal convolution of decoding and prefilling rows with the same arithmetic: tap by tap, oldest first.

Called in batch-invariant mode by the Mamba2 mixer, before `recurrence_by_token` and with the same plans, so
that window and SSM part of a state have the same depth, and by the mixer of a gated short convolution.
"""

from collections.abc import Sequence

import torch

from mamba_kernels.elementwise import silu
from mamba_kernels.precision import accumulator
from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.ssd_prefill import ChunkPlan


def convolution_by_tap(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    window: torch.Tensor,
    decode: SlotPlan | None,
    prefill: ChunkPlan | None,
    gate: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute silu(sum_k weight[k] * input[t - K + 1 + k] + bias), [T, C] in the type of x; write `window`.

    With a gate [T, C], the sum is multiplied by it instead of being activated. `x` is [T, C], decoding rows
    first (rows may be strided); `weight` is [K, C]; `bias` is [C]; `window` is [slabs, K-1, C], any strides.
    Inputs before a row of `decode` or a piece of `prefill` are read from its source slot, and the last K-1
    inputs, before activation, are written to the plans' target, tracking and checkpoint slots.
    """
    K = weight.shape[0]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    cut = 0
    if decode is not None:
        cut = len(decode.target_slots)
        inputs = torch.cat([decode.read(window).to(x.dtype), x[:cut, None]], dim=1)  # [n, K, C]
        decode.write(window, inputs[:, 1:])
        sums = _taps([inputs[:, k] for k in range(K)], weight, bias)
        out[:cut] = silu(sums) if gate is None else sums * gate[:cut]
    if prefill is not None:
        past = prefill.slots.read(window).to(x.dtype)
        for piece, target in enumerate(prefill.slots.target_slots):
            first, end = cut + prefill.piece_start[piece], cut + prefill.piece_start[piece + 1]
            inputs = torch.cat([past[piece], x[first:end]])  # [K-1 + rows, C]
            sums = _taps([inputs[k : k + end - first] for k in range(K)], weight, bias)
            out[first:end] = silu(sums) if gate is None else sums * gate[first:end]
            for rows, slot in [*prefill.checkpoints(piece), (end - first, target)]:
                window[slot] = inputs[rows : rows + K - 1]
    return out


def _taps(parts: Sequence[torch.Tensor], weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    # Products and sums are separate operations: a fused one may round differently at the end of a vector.
    kind = accumulator(parts[0].dtype)
    y = parts[0].to(kind) * weight[0]
    for k in range(1, len(parts)):
        y += parts[k].to(kind) * weight[k]
    if bias is not None:
        y += bias
    return y
