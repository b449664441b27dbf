"""The gated delta rule in plain torch on any device; float64 is the truth that kernels are compared with.

A prompt is computed in chunks: the values that the tokens of a chunk write are the solution of a triangular
system, and the state is passed from chunk to chunk. Nothing is read from the device.
"""

from dataclasses import dataclass

import torch

from mamba_kernels.elementwise import sigmoid, softplus
from mamba_kernels.gated_delta.inputs import LEAST_SQUARE, DeltaInputs
from mamba_kernels.precision import accumulator
from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.ssd_prefill.plan import ChunkPlan
from mamba_kernels.stochastic_rounding import round_to_float16_

CHUNK = 64
"""Largest number of tokens that are solved for together."""
CHANNEL_CHUNK = 16
"""Largest number of tokens that are solved for together if each channel has a decay: each pair of tokens then
takes as much memory as a key."""
GATHER_ELEMENTS = 1 << 23
"""Bound on the elements of states that a decode gathers at once; one state may exceed it."""
STARTED_STATES, STARTED_CHUNKS = 1 << 24, 32
"""Bounds on the state elements and on the chunks of pieces that start together; one piece may exceed them."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """Inputs in the accumulation type, heads first; queries and keys are normalised."""

    q: torch.Tensor
    """Queries, [H, T, K]."""
    k: torch.Tensor
    v: torch.Tensor
    """Values, [H, T, V]."""
    log_decay: torch.Tensor
    """Logarithm of each token's decay, [H, T, 1] or [H, T, K], never positive."""
    beta: torch.Tensor
    """Strength with which each token's value is written, [H, T]."""

    @classmethod
    def of(cls, inputs: DeltaInputs) -> "_Rows":
        kind = accumulator(inputs.v.dtype)
        times = inputs.v.shape[1] // inputs.k.shape[1]

        def normalise(x: torch.Tensor) -> torch.Tensor:
            wide = x.to(kind)
            wide = wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + LEAST_SQUARE)
            repeated = wide[:, :, None].expand(-1, -1, times, -1).flatten(1, 2)
            return repeated.transpose(0, 1)

        steps = softplus(inputs.a.to(kind) + inputs.dt_bias.to(kind))
        steps = steps if inputs.by_channel else steps[..., None]
        log_decay = inputs.A.to(kind)[:, None] * steps
        return cls(
            q=normalise(inputs.q) * inputs.q.shape[-1] ** -0.5,
            k=normalise(inputs.k),
            v=inputs.v.to(kind).transpose(0, 1),
            log_decay=log_decay.transpose(0, 1),
            beta=sigmoid(inputs.b.to(kind)).mul_(inputs.beta_scale).t(),
        )

    def part(self, rows: slice) -> "_Rows":
        return _Rows(
            self.q[:, rows], self.k[:, rows], self.v[:, rows], self.log_decay[:, rows], self.beta[:, rows]
        )


def gated_delta_update(state: torch.Tensor, inputs: DeltaInputs, plan: SlotPlan, out: torch.Tensor) -> None:
    """Compute one token for each row.

    `state` is [slabs, H, V, K], any strides, written at the plan's targets and tracking slots; `out` is [n,
    H, V], written.
    """
    rows = _Rows.of(inputs)
    for rows_of_part, part in plan.split(max(1, GATHER_ELEMENTS // state[0].numel())):
        out[rows_of_part] = _update_rows(state, rows.part(rows_of_part), part)


def _update_rows(state: torch.Tensor, rows: _Rows, plan: SlotPlan) -> torch.Tensor:
    """Compute all rows of `plan` at once and return their outputs [n, H, V]."""
    q, k, v = (tensor.transpose(0, 1) for tensor in (rows.q, rows.k, rows.v))  # [n, H, ..]
    s = plan.read(state).to(v.dtype) * rows.log_decay.transpose(0, 1).exp()[..., None, :]
    error = v - (s @ k[..., None])[..., 0]
    s = s + (error * rows.beta.t()[..., None])[..., None] * k[..., None, :]
    y = (s @ q[..., None])[..., 0]
    if state.dtype == torch.float16:
        s = s.contiguous()
        round_to_float16_(s, plan.device_noise)
    plan.write(state, s)
    return y


def gated_delta_prefill(state: torch.Tensor, inputs: DeltaInputs, plan: ChunkPlan, out: torch.Tensor) -> None:
    """Compute the pieces of the plan, and store checkpoints and final states in their slots.

    Each piece starts from its source slot, which may be its target, but not the target of another piece.
    `state` is [slabs, H, V, K], any strides; `out` is [T, H, V], written; T = plan.tokens.
    """
    rows = _Rows.of(inputs)
    chunks_at_once = max(1, min(STARTED_CHUNKS, STARTED_STATES // state[0].numel()))
    for rows_of_part, part in plan.split(chunks_at_once):
        _prefill_pieces(state, rows.part(rows_of_part), part, out[rows_of_part])


def _prefill_pieces(state: torch.Tensor, rows: _Rows, plan: ChunkPlan, out: torch.Tensor) -> None:
    """Compute all pieces of `plan`; read all their sources before any slot is written."""
    states = plan.slots.read(state).to(rows.v.dtype)
    for piece in range(len(plan.piece_start) - 1):
        start, end = plan.piece_start[piece], plan.piece_start[piece + 1]
        checkpoints = dict(plan.checkpoints(piece))
        most = CHUNK if rows.log_decay.shape[2] == 1 else CHANNEL_CHUNK
        cuts = sorted({*range(most, end - start, most), *checkpoints, end - start})
        s, before = states[piece], 0
        for cut in cuts:
            part = slice(start + before, start + cut)
            y, s = _chunk(s, rows.part(part))
            out[part] = y.transpose(0, 1).to(out.dtype)
            if cut in checkpoints:
                state[checkpoints[cut]] = _as_stored(s, state, plan.row_noise[start + cut - 1])
            before = cut
        state[plan.slots.target_slots[piece]] = _as_stored(s, state, plan.row_noise[end - 1])


def _as_stored(s: torch.Tensor, state: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Convert s, [H, V, K], to the type of the states; `noise` is the word by which float16 is rounded."""
    if state.dtype == torch.float16:
        s = s.clone(memory_format=torch.contiguous_format)
        round_to_float16_(s[None], noise[None])
    return s.to(state.dtype)


def _chunk(s: torch.Tensor, rows: _Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the outputs [H, t, V] of a chunk of t tokens, and the state [H, V, K] after it."""
    log = rows.log_decay.cumsum(1)  # [H, t, 1 or K]
    from_state = log.exp()
    keys, queries = _pairs(rows, log)
    system = (keys * rows.beta[..., None]).tril(-1)
    right_side = rows.beta[..., None] * (rows.v - (from_state * rows.k) @ s.transpose(1, 2))
    updates = torch.linalg.solve_triangular(
        system, right_side, upper=False, unitriangular=True
    )  # [H, t, V]; the ones of the diagonal are implied
    y = (from_state * rows.q) @ s.transpose(1, 2) + queries @ updates
    decay_to_end = (log[:, -1:] - log).exp()
    return y, s * log[:, -1:].exp() + updates.transpose(1, 2) @ (decay_to_end * rows.k)


def _pairs(rows: _Rows, log: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the products [H, t, t] of keys, and of queries, with earlier keys, decayed in between."""
    # Differences are taken and masked before the exponential: no factor ever overflows.
    if log.shape[2] == 1:
        decay = (log - log.transpose(1, 2)).tril().exp().tril()
        return (rows.k @ rows.k.transpose(1, 2)) * decay, (rows.q @ rows.k.transpose(1, 2)) * decay
    later = torch.ones(log.shape[1], log.shape[1], dtype=torch.bool, device=log.device).triu(1)
    apart = (log[:, :, None] - log[:, None]).masked_fill_(later[..., None], -torch.inf).exp_()
    apart *= rows.k[:, None]  # [H, t, t, K]
    return (apart @ rows.k[..., None])[..., 0], (apart @ rows.q[..., None])[..., 0]
