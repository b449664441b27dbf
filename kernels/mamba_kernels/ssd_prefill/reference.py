"""Chunked SSD (Dao and Gu 2024, section 6) in plain torch on any device, float64 included.

Called by the Mamba2 mixer for the rows that prefill. Reads initial states from their slots, and writes final
states and checkpoints to theirs; a chunk's result depends on its own sequence alone.
"""

from dataclasses import dataclass

import torch

from mamba_kernels.precision import accumulator
from mamba_kernels.scan_inputs import ScanInputs
from mamba_kernels.ssd_prefill.padded_chunks import ChunkGroup
from mamba_kernels.ssd_prefill.plan import ChunkPlan
from mamba_kernels.step_size import step_size
from mamba_kernels.stochastic_rounding import round_to_float16_

BLOCK_ELEMENTS = 1 << 23
"""Bound on the elements of the intermediate [chunks, H, C, C]."""
SCANNED_STATES = 1 << 24
SCANNED_CHUNKS = 32
"""Bounds on the state elements and on the chunks that are scanned together; one piece may exceed them."""


def ssd_prefill(state: torch.Tensor, inputs: ScanInputs, plan: ChunkPlan, out: torch.Tensor) -> None:
    """Compute the recurrence of `ScanInputs` over the plan's chunks.

    `state` is [slabs, H, P, N], any strides, read and written at the plan's slots; `out` is [T, H, P],
    written; T = plan.tokens.
    """
    chunks_at_once = max(1, min(SCANNED_CHUNKS, SCANNED_STATES // state[0].numel()))
    for rows, part in plan.split(chunks_at_once):
        _scan(state, inputs.of_rows(rows), part, out[rows])


def _scan(state: torch.Tensor, inputs: ScanInputs, plan: ChunkPlan, out: torch.Tensor) -> None:
    """Scan all chunks of `plan` together."""
    kind = accumulator(inputs.x.dtype)
    H, P = inputs.x.shape[1:]
    G, N = inputs.B.shape[1:]
    step = step_size(inputs.dt, inputs.dt_bias, inputs.dt_limit, kind)
    parts = [_Part.of(inputs, step, group, kind) for group in plan.padded.groups]
    ends = step.new_empty(plan.chunks, G, H // G * P, N)
    chunk_decay = step.new_empty(plan.chunks, H)
    outputs = []
    for part in parts:
        ends[part.group.chunks] = _chunk_states(part)
        chunk_decay[part.group.chunks] = torch.exp(part.log_decay[:, -1])
        outputs.append(_within_chunks(part))
    _between_chunks(state, ends, chunk_decay, parts, outputs, plan)
    for part, y in zip(parts, outputs, strict=True):
        torch.addcmul(y, part.x, inputs.D[:, None], out=y)
        rows = y.view(-1, H, P)
        rows = rows if part.group.unpadded is None else rows[part.group.unpadded]
        if part.group.targets is None:
            out.copy_(rows)
        else:
            out[part.group.targets] = rows.to(out.dtype)


@dataclass(frozen=True, slots=True)
class _Part:
    """The inputs of one group of g chunks, padded to its width Q."""

    group: ChunkGroup
    x: torch.Tensor
    """Values, [g, Q, H, P]."""
    step: torch.Tensor
    """Step sizes, [g, Q, H]."""
    log_decay: torch.Tensor
    """Logarithm of the decay from the chunk's start to each row, inclusive, [g, Q, H]."""
    B: torch.Tensor
    """Input vectors of the state, [g, G, Q, N]."""
    C: torch.Tensor
    """Output vectors of the state, [g, G, Q, N]."""

    @classmethod
    def of(cls, inputs: ScanInputs, step: torch.Tensor, group: ChunkGroup, kind: torch.dtype) -> "_Part":
        x, B, C, step = (_pad(tensor, group).to(kind) for tensor in (inputs.x, inputs.B, inputs.C, step))
        if group.padding is not None:
            # dt = 0 leaves the state as it is and adds nothing.
            step = step.masked_fill(group.padding[..., None], 0)
        log_decay = (step * inputs.A).cumsum(1)
        return cls(group, x, step, log_decay, B.transpose(1, 2), C.transpose(1, 2).contiguous())


def _pad(tensor: torch.Tensor, group: ChunkGroup) -> torch.Tensor:
    """Rearrange [T, ...] as [g, Q, ...]."""
    if group.rows is not None:
        tensor = tensor[group.rows]
    return tensor.reshape(-1, group.width, *tensor.shape[1:])


def _chunk_states(part: _Part) -> torch.Tensor:
    """Compute what each chunk adds to the state, sum_j exp(l_end - l_j) dt_j x_j B_j^T: [g, G, H/G*P, N]."""
    x, step, log_decay, B = part.x, part.step, part.log_decay, part.B
    n, Q, H, P = x.shape
    G, N = B.shape[1], B.shape[3]
    weight = torch.exp(log_decay[:, -1:] - log_decay).mul_(step)  # [n, Q, H]
    weighted = x.new_empty(n, G, Q, H // G, P)
    torch.mul(x.view(n, Q, G, -1, P), weight.view(n, Q, G, -1, 1), out=weighted.permute(0, 2, 1, 3, 4))
    flat = weighted.view(n * G, Q, -1)
    return torch.bmm(flat.transpose(1, 2), B.reshape(n * G, Q, N)).view(n, G, -1, N)


def _within_chunks(part: _Part) -> torch.Tensor:
    """Compute y_i = sum_{j <= i} exp(l_i - l_j) (C_i . B_j) dt_j x_j inside each chunk, [g, Q, H, P]."""
    x, step, log_decay, B, C = part.x, part.step, part.log_decay, part.B, part.C
    n, Q, H, P = x.shape
    G, N = B.shape[1], B.shape[3]
    y = torch.empty_like(x)
    future = torch.ones(Q, Q, dtype=torch.bool, device=x.device).triu_(1)
    block = max(1, BLOCK_ELEMENTS // (H * Q * Q))
    for first in range(0, n, block):
        block_chunks = slice(first, min(first + block, n))
        size = block_chunks.stop - first
        pairs = torch.bmm(
            C[block_chunks].reshape(size * G, Q, N), B[block_chunks].reshape(size * G, Q, N).transpose(1, 2)
        ).view(size, G, 1, Q, Q)
        rates = log_decay[block_chunks].transpose(1, 2).contiguous()  # [size, H, Q]
        # Differences are taken and masked before the exponential: no factor ever overflows.
        weight = (rates[..., None] - rates[:, :, None]).masked_fill_(future, -torch.inf).exp_()
        weight.view(size, G, -1, Q, Q).mul_(pairs)
        inflow = (x[block_chunks] * step[block_chunks, ..., None]).transpose(1, 2).reshape(size * H, Q, P)
        y[block_chunks] = torch.bmm(weight.view(size * H, Q, Q), inflow).view(size, H, Q, P).transpose(1, 2)
    return y


def _between_chunks(
    state: torch.Tensor,
    ends: torch.Tensor,
    chunk_decay: torch.Tensor,
    parts: list[_Part],
    outputs: list[torch.Tensor],
    plan: ChunkPlan,
) -> None:
    """Carry states from chunk to chunk in rank order, and add their part to `outputs`.

    `ends` [n, G, H/G*P, N] is what each chunk adds to the state, and becomes the state at its end.
    `chunk_decay` [n, H] is the decay over each chunk. All sources of `plan` are read before any slot is
    written, so a piece's source may be its target. A source must not be the target of another piece of the
    step, since `ssd_prefill` may scan the pieces of a step in several parts.
    """
    n, G, _, N = ends.shape
    H, P = outputs[0].shape[2:]
    decays = [torch.exp(part.log_decay).view(*part.step.shape[:2], G, H // G, 1) for part in parts]
    states = ends.view(n, G, H // G, P, N)
    chunk_decay = chunk_decay.view(n, G, H // G, 1, 1)
    initial = plan.slots.read(state).to(ends.dtype)
    for rank, (chunks, previous) in enumerate(
        zip(plan.padded.rank_chunks, plan.padded.rank_before, strict=True)
    ):
        start = initial.view(-1, G, H // G, P, N) if rank == 0 else states[previous]
        if rank > 0 or plan.slots.fresh is None or len(plan.slots.source_slots) > 1:
            for part in plan.padded.rank_parts[rank]:
                Q = parts[part.group].group.width
                C = parts[part.group].C[part.in_group]
                y = outputs[part.group].view(-1, Q, G, H // G, P)
                flat = start[part.in_rank].reshape(-1, G, H // G * P, N)
                carried = torch.matmul(C, flat.transpose(2, 3)).view(-1, G, Q, H // G, P).transpose(1, 2)
                y[part.in_group] += carried * decays[part.group][part.in_group]
            states[chunks] += start * chunk_decay[chunks]
    last = states[plan.padded.last].view(-1, H, P, N)
    if state.dtype == torch.float16:
        round_to_float16_(last, plan.slots.device_noise)
    plan.slots.write(state, last)
    tracked, slots = plan.padded.tracked, plan.padded.tracked_slots
    if tracked is not None and slots is not None:
        checkpoints = states[tracked].view(-1, H, P, N)
        if state.dtype == torch.float16:
            round_to_float16_(checkpoints, plan.on_device.chunk_noise[tracked])
        state[slots] = checkpoints.to(state.dtype)
