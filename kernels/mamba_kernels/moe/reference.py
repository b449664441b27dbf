"""A mixture of experts in plain torch, any device, float64-capable; no value is read by the host."""

import torch
import torch.nn.functional as F

from mamba_kernels.moe.activation import Activation
from mamba_kernels.moe.shared_expert import SharedExpert
from mamba_kernels.precision import accumulator

BLOCK = 16
"""Rows of one expert that are multiplied at once. Always as many, so that each product has the same shape and
a row the same bits among any neighbours."""


def moe(
    hidden: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    activation: Activation,
    out: torch.Tensor,
    shared: SharedExpert | None = None,
) -> None:
    """out_i = sum over j of weights_ij * expert_ij(hidden_i), the shared expert's result added last.

    hidden: [n, d]; experts: [n, k] int32, -1 = none; weights: [n, k]; gate_up: [E, f or 2 f, d]; down:
    [E, d_out, f]; out: [n, d_out], written. Sums are at least float32, those over k in the order of k.
    """
    parts = _parts(hidden, experts, weights, gate_up, down, activation)
    total = parts[:, 0].clone()
    for j in range(1, parts.shape[1]):
        total += parts[:, j]
    if shared is not None:
        every = torch.zeros(len(hidden), 1, dtype=torch.int32, device=hidden.device)
        counts = torch.ones_like(total[:, :1])
        if shared.logit is not None:
            counts = shared.logit.unsqueeze(1).sigmoid()
        total += _parts(hidden, every, counts, shared.gate_up[None], shared.down[None], activation)[:, 0]
    out.copy_(total)


def _parts(
    hidden: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    activation: Activation,
) -> torch.Tensor:
    """[n, k, d_out]: the weighted result of each pair of a row and one of its experts; zero where none is."""
    wide = accumulator(hidden.dtype)
    n, k = experts.shape
    pairs = n * k
    # The last row takes what the padding of the blocks makes.
    parts = torch.zeros(pairs + 1, down.shape[1], dtype=wide, device=hidden.device)
    counts = F.pad(weights.flatten().to(wide), (0, 1))
    block_expert, block_pairs = _blocks(experts, len(gate_up))
    for block in range(len(block_expert)):
        expert, block_pair = block_expert[block : block + 1], block_pairs[block]
        x = hidden.index_select(0, (block_pair // k).clamp(max=n - 1)).to(wide)
        inner = F.linear(x, gate_up.index_select(0, expert)[0].to(wide))
        if activation is Activation.GATED_SILU:
            gate, up = inner.chunk(2, -1)
            inner = F.silu(gate) * up
        else:
            inner = F.relu(inner).square()
        result = F.linear(inner, down.index_select(0, expert)[0].to(wide))
        parts.index_copy_(0, block_pair, result * counts.index_select(0, block_pair).unsqueeze(1))
    return parts[:pairs].view(n, k, -1) if pairs else parts.new_zeros(n, k, down.shape[1])


def _blocks(experts: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs sorted by expert in blocks of one expert each: [blocks], its expert, and [blocks, BLOCK], its
    pairs; padding and blocks beyond the work name the pair behind the last one.

    The number of blocks follows from shapes alone: each expert that is hit wastes less than a block.
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
