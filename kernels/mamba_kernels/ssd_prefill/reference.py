"""Chunked SSD (Dao and Gu 2024, section 6) in plain torch: any device, float64-capable.

Called by the Mamba2 mixer for the rows that prefill. Reads initial states from their slots, writes final
states and checkpoints to theirs; a chunk's result depends on its own sequence alone.
"""

import torch

from mamba_kernels.precision import accumulator
from mamba_kernels.scan_inputs import ScanInputs
from mamba_kernels.ssd_prefill.plan import ChunkPlan
from mamba_kernels.step_size import step_size

BLOCK_ELEMENTS = 1 << 23
"""Bound on the elements of the [chunks, H, C, C] intermediate that is alive at once."""


def ssd_prefill(state: torch.Tensor, inputs: ScanInputs, plan: ChunkPlan, out: torch.Tensor) -> None:
    """The recurrence of `ScanInputs` over the plan's chunks.

    state: [slabs, H, P, N], any strides, read and written at the plan's slots; out: [T, H, P], written;
    T = plan.tokens.
    """
    x, B, C = inputs.x, inputs.B, inputs.C
    kind = accumulator(x.dtype)
    H, P = x.shape[1:]
    n, Q = plan.chunks, plan.chunk_size
    step = step_size(inputs.dt, inputs.dt_bias, inputs.dt_limit, kind)
    x, B, C, step = (_padded(tensor, plan) for tensor in (x.to(kind), B.to(kind), C.to(kind), step))
    if plan.padding is not None:
        # dt = 0 leaves the state as it is and adds nothing.
        step = step.masked_fill(plan.padding[..., None], 0)
    log_decay = (step * inputs.A).cumsum(1)  # [n, Q, H], from the chunk's start, inclusive
    B = B.transpose(1, 2)  # [n, G, Q, N]
    C = C.transpose(1, 2).contiguous()

    ends = _chunk_states(x, step, log_decay, B)  # [n, G, H/G*P, N]
    y = _within_chunks(x, step, log_decay, B, C)  # [n, Q, H, P]
    _between_chunks(state, ends, log_decay, C, y, plan)
    torch.addcmul(y, x, inputs.D[:, None], out=y)
    rows = y.view(n * Q, H, P)
    out.copy_(rows if plan.unpadded is None else rows[plan.unpadded])


def _padded(tensor: torch.Tensor, plan: ChunkPlan) -> torch.Tensor:
    """[T, ...] as [n, Q, ...]."""
    if plan.rows is not None:
        tensor = tensor[plan.rows]
    return tensor.reshape(plan.chunks, plan.chunk_size, *tensor.shape[1:])


def _chunk_states(
    x: torch.Tensor, step: torch.Tensor, log_decay: torch.Tensor, B: torch.Tensor
) -> torch.Tensor:
    """State each chunk adds by itself at its end: sum_j exp(l_end - l_j) dt_j x_j B_j^T, [n, G, H/G*P, N]."""
    n, Q, H, P = x.shape
    G, N = B.shape[1], B.shape[3]
    weight = torch.exp(log_decay[:, -1:] - log_decay).mul_(step)  # [n, Q, H]
    weighted = x.new_empty(n, G, Q, H // G, P)
    torch.mul(x.view(n, Q, G, -1, P), weight.view(n, Q, G, -1, 1), out=weighted.permute(0, 2, 1, 3, 4))
    flat = weighted.view(n * G, Q, -1)
    return torch.bmm(flat.transpose(1, 2), B.reshape(n * G, Q, N)).view(n, G, -1, N)


def _within_chunks(
    x: torch.Tensor, step: torch.Tensor, log_decay: torch.Tensor, B: torch.Tensor, C: torch.Tensor
) -> torch.Tensor:
    """y_i = sum_{j <= i} exp(l_i - l_j) (C_i . B_j) dt_j x_j inside each chunk, [n, Q, H, P]."""
    n, Q, H, P = x.shape
    G, N = B.shape[1], B.shape[3]
    y = torch.empty_like(x)
    future = torch.ones(Q, Q, dtype=torch.bool, device=x.device).triu_(1)
    block = max(1, BLOCK_ELEMENTS // (H * Q * Q))
    for first in range(0, n, block):
        part = slice(first, min(first + block, n))
        size = part.stop - first
        pairs = torch.bmm(
            C[part].reshape(size * G, Q, N), B[part].reshape(size * G, Q, N).transpose(1, 2)
        ).view(size, G, 1, Q, Q)
        rates = log_decay[part].transpose(1, 2).contiguous()  # [size, H, Q]
        # Differences before exp, masked before exp: no factor ever overflows.
        weight = (rates[..., None] - rates[:, :, None]).masked_fill_(future, -torch.inf).exp_()
        weight.view(size, G, -1, Q, Q).mul_(pairs)
        inflow = (x[part] * step[part, ..., None]).transpose(1, 2).reshape(size * H, Q, P)
        y[part] = torch.bmm(weight.view(size * H, Q, Q), inflow).view(size, H, Q, P).transpose(1, 2)
    return y


def _between_chunks(
    state: torch.Tensor,
    ends: torch.Tensor,
    log_decay: torch.Tensor,
    C: torch.Tensor,
    y: torch.Tensor,
    plan: ChunkPlan,
) -> None:
    """Carry states from chunk to chunk, in rank order: `ends` becomes the true end states, `y` gains theirs.

    All sources are read before any slot is written: one piece's target may be nobody else's source in the
    same step, but a piece's own source and target may be one slot.
    """
    n, Q, H, P = y.shape
    G, N = C.shape[1], C.shape[3]
    decay = torch.exp(log_decay)  # [n, Q, H]
    whole = decay[:, -1].view(n, G, -1, 1, 1)
    states = ends.view(n, G, H // G, P, N)
    outputs = y.view(n, Q, G, H // G, P)
    initial = plan.slots.read(state).to(ends.dtype)
    for rank, (chunks, before) in enumerate(zip(plan.rank_chunks, plan.rank_before, strict=True)):
        start = initial.view(-1, G, H // G, P, N) if rank == 0 else states[before]
        if rank > 0 or plan.slots.fresh is None or len(plan.slots.source_slots) > 1:
            carried = torch.matmul(C[chunks], start.reshape(-1, G, H // G * P, N).transpose(2, 3))
            carried = carried.view(-1, G, Q, H // G, P).transpose(1, 2)
            outputs[chunks] += carried * decay[chunks].view(-1, Q, G, H // G, 1)
            states[chunks] += start * whole[chunks]
    plan.slots.write(state, states[plan.last].view(-1, H, P, N))
    if plan.tracked is not None and plan.tracked_slots is not None:
        state[plan.tracked_slots] = states[plan.tracked].view(-1, H, P, N).to(state.dtype)
