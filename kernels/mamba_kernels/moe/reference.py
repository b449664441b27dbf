"""A mixture of experts in plain torch on any device, float64 included; the host reads no value."""

import torch
import torch.nn.functional as F

from mamba_kernels.elementwise import sigmoid
from mamba_kernels.moe.activation import Activation
from mamba_kernels.moe.expert_weights import ExpertWeights, of_expert, of_one
from mamba_kernels.moe.shared_expert import SharedExpert
from mamba_kernels.precision import accumulator

BLOCK = 16
"""Rows of one expert that are multiplied at once. The number is fixed, so that each product has the same
shape and a row has the same bits among any neighbours."""


def moe(
    hidden: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    gate_up: ExpertWeights,
    down: ExpertWeights,
    activation: Activation,
    out: torch.Tensor,
    shared: SharedExpert | None = None,
) -> None:
    """Compute out_i = sum over j of weights_ij * expert_ij(hidden_i), and add the shared expert last.

    `hidden` is [n, d]; `experts` are [n, k] int32, -1 = none; `weights` are [n, k]; `gate_up` is [E, f or 2
    f, d]; `down` is [E, d_out, f]; `out` is [n, d_out], written. Sums are at least float32; the sum over j is
    in the order of j.
    """
    parts = _parts(hidden, experts, weights, gate_up, down, activation)
    total = parts[:, 0].clone()
    for j in range(1, parts.shape[1]):
        total += parts[:, j]
    if shared is not None:
        first = torch.zeros(len(hidden), 1, dtype=torch.int32, device=hidden.device)
        weight = torch.ones_like(total[:, :1])
        if shared.logit is not None:
            weight = sigmoid(shared.logit.unsqueeze(1))
        up, down = of_one(shared.gate_up), of_one(shared.down)
        total += _parts(hidden, first, weight, up, down, activation)[:, 0]
    out.copy_(total)


def _parts(
    hidden: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    gate_up: ExpertWeights,
    down: ExpertWeights,
    activation: Activation,
) -> torch.Tensor:
    """Compute the weighted result of each pair, [n, k, d_out]; a pair without an expert gives zero."""
    wide = accumulator(hidden.dtype)
    n, k = experts.shape
    pairs = n * k
    # The last row receives the results of the padding of blocks.
    parts = torch.zeros(pairs + 1, down.shape[1], dtype=wide, device=hidden.device)
    counts = F.pad(weights.flatten().to(wide), (0, 1))
    block_expert, block_pairs = _blocks(experts, gate_up.shape[0])
    for block in range(len(block_expert)):
        expert, block_pair = block_expert[block : block + 1], block_pairs[block]
        x = hidden.index_select(0, (block_pair // k).clamp(max=n - 1)).to(wide)
        inner = F.linear(x, of_expert(gate_up, expert, wide))
        if activation is Activation.GATED_SILU:
            gate, up = inner.chunk(2, -1)
            inner = F.silu(gate) * up
        else:
            inner = F.relu(inner).square()
        result = F.linear(inner, of_expert(down, expert, wide))
        parts.index_copy_(0, block_pair, result * counts.index_select(0, block_pair).unsqueeze(1))
    return parts[:pairs].view(n, k, -1) if pairs else parts.new_zeros(n, k, down.shape[1])


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
