"""A mixture of experts in plain torch on any device, float64 included; the host reads no value."""

import torch
import torch.nn.functional as F

from mamba_kernels.fp8.matrix import of_inputs
from mamba_kernels.moe.activation import Activation
from mamba_kernels.moe.expert_scales import ExpertScales
from mamba_kernels.moe.shared_expert import SharedExpert
from mamba_kernels.precision import accumulator

BLOCK = 16
"""Rows of one expert that are multiplied at once. The number is fixed, so that each product has the same
shape and a row has the same bits among any neighbours."""


def moe(
    hidden: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    activation: Activation,
    out: torch.Tensor,
    shared: SharedExpert | None = None,
    scales: ExpertScales | None = None,
) -> None:
    """Compute out_i = sum over j of weights_ij * expert_ij(hidden_i), and add the shared expert last.

    hidden: [n, d]; experts: [n, k] int32, -1 = none; weights: [n, k]; gate_up: [E, f or 2 f, d]; down:
    [E, d_out, f]; out: [n, d_out], written. Sums are at least float32, those over k in the order of k.
    With `scales` the weights are FP8, and are multiplied by these; rows are not rounded.
    """
    own: tuple[torch.Tensor | None, torch.Tensor | None]
    own = (None, None) if scales is None else (scales.gate_up, scales.down)
    parts = _parts(hidden, experts, weights, gate_up, down, activation, own)
    total = parts[:, 0].clone()
    for j in range(1, parts.shape[1]):
        total += parts[:, j]
    if shared is not None:
        first = torch.zeros(len(hidden), 1, dtype=torch.int32, device=hidden.device)
        weight = torch.ones_like(total[:, :1])
        if shared.logit is not None:
            weight = shared.logit.unsqueeze(1).sigmoid()
        own = (_only(shared.gate_up_scales), _only(shared.down_scales))
        total += _parts(hidden, first, weight, shared.gate_up[None], shared.down[None], activation, own)[:, 0]
    out.copy_(total)


def _only(scales: torch.Tensor | None) -> torch.Tensor | None:
    """Return the scales as those of the only expert."""
    return None if scales is None else scales[None]


def _parts(
    hidden: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    activation: Activation,
    scales: tuple[torch.Tensor | None, torch.Tensor | None],
) -> torch.Tensor:
    """Compute the weighted result of each pair, [n, k, d_out]; a pair without an expert gives zero.

    scales: those of `gate_up` and of `down`, if these are FP8.
    """
    wide = accumulator(hidden.dtype)
    n, k = experts.shape
    pairs = n * k
    # The last row receives the results of the padding of blocks.
    parts = torch.zeros(pairs + 1, down.shape[1], dtype=wide, device=hidden.device)
    counts = F.pad(weights.flatten().to(wide), (0, 1))
    block_expert, block_pairs = _blocks(experts, len(gate_up))
    for block in range(len(block_expert)):
        expert, block_pair = block_expert[block : block + 1], block_pairs[block]
        x = hidden.index_select(0, (block_pair // k).clamp(max=n - 1)).to(wide)
        inner = F.linear(x, _weight(gate_up, scales[0], expert, wide))
        if activation is Activation.GATED_SILU:
            gate, up = inner.chunk(2, -1)
            inner = F.silu(gate) * up
        else:
            inner = F.relu(inner).square()
        result = F.linear(inner, _weight(down, scales[1], expert, wide))
        parts.index_copy_(0, block_pair, result * counts.index_select(0, block_pair).unsqueeze(1))
    return parts[:pairs].view(n, k, -1) if pairs else parts.new_zeros(n, k, down.shape[1])


def _weight(
    weights: torch.Tensor, scales: torch.Tensor | None, expert: torch.Tensor, wide: torch.dtype
) -> torch.Tensor:
    """Return the weights [outputs, inputs] of an expert; weights: [E, outputs, inputs]; expert: [1]."""
    if scales is None:
        return weights.index_select(0, expert)[0].to(wide)
    # Torch indexes bytes on every device, and FP8 on some.
    numbers = weights.view(torch.uint8).index_select(0, expert)[0].view(weights.dtype)
    return numbers.to(wide) * of_inputs(scales.index_select(0, expert)[0], weights.shape[2])


def _blocks(experts: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sort pairs by expert into blocks; return experts [blocks] and pairs [blocks, BLOCK] of the blocks.

    Padding and unused blocks name the pair after the last one. The number of blocks follows from shapes
    alone: each expert that is hit wastes less than a block.
    """
    pairs, device = experts.numel(), experts.device
    number = experts.flatten().long()
    order = torch.where(number < 0, count, number).argsort(stable=True)
    counts = (number.unsqueeze(0) == torch.arange(count, device=device).unsqueeze(1)).sum(1)
    blocks = (counts + BLOCK - 1) // BLOCK
    most = (pairs + min(pairs, count) * (BLOCK - 1)) // BLOCK
    block = torch.arange(most, device=device)
    expert = torch.searchsorted(blocks.cumsum(0), block, right=True)
    busy, expert = expert < count, expert.clamp(max=count - 1)
    first_block, first = blocks.cumsum(0) - blocks, counts.cumsum(0) - counts
    rank = ((block - first_block[expert]) * BLOCK).unsqueeze(1) + torch.arange(BLOCK, device=device)
    busy_pairs = busy.unsqueeze(1) & (rank < counts[expert].unsqueeze(1))
    order_place = (first[expert].unsqueeze(1) + rank).clamp(max=pairs - 1)
    return expert, torch.where(busy_pairs, order[order_place], pairs)
