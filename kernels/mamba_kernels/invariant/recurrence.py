"""The Mamba2 recurrence token by token, with the same arithmetic for decoding and prefilling rows.

Called by the Mamba2 mixer in batch-invariant mode instead of `ssd_prefill` and `state_update`: a state at a
depth then has the same bits whether it was prefilled in one piece or in many, decoded, or recomputed. The
code is vectorised over sequences, never over the tokens of a sequence.
"""

from dataclasses import dataclass

import numpy as np
import torch

from mamba_kernels.precision import accumulator
from mamba_kernels.scan_inputs import ScanInputs
from mamba_kernels.slot_plan import SlotPlan, index_tensor
from mamba_kernels.ssd_prefill import ChunkPlan
from mamba_kernels.step_size import step_size
from mamba_kernels.stochastic_rounding import round_to_float16_


def recurrence_by_token(
    state: torch.Tensor,
    inputs: ScanInputs,
    decode: SlotPlan | None,
    prefill: ChunkPlan | None,
    out: torch.Tensor,
) -> None:
    """Compute the recurrence of `ScanInputs` over all rows, decoding rows first.

    `state` is [slabs, H, P, N], any strides, read and written at the plans' slots; `out` is [T, H, P],
    written. The state is rounded to its stored type after each token, as it is when every token is a step.
    """
    rows = _Rows.of(inputs)
    cut = 0
    if decode is not None:
        cut = len(decode.target_slots)
        h = decode.read(state).to(rows.kind)
        out[:cut] = rows.advance(h, slice(0, cut))
        _as_stored(h, decode.device_noise, state.dtype)
        decode.write(state, h)
    if prefill is not None:
        _prefill(state, rows, prefill, cut, out)


def _as_stored(h: torch.Tensor, noise: torch.Tensor, dtype: torch.dtype) -> None:
    """Round h, [n, H, P, N], in place to the values that a cache of type `dtype` returns."""
    if dtype == torch.float16:
        round_to_float16_(h, noise)
    elif dtype != h.dtype:
        h.copy_(h.to(dtype))


@dataclass(frozen=True, slots=True)
class _Rows:
    """Terms of the recurrence for all rows, computed elementwise, so that a row's place does not matter."""

    decay: torch.Tensor
    """Factor of the state, [T, H, 1, 1]."""
    inflow: torch.Tensor
    """Inputs times step sizes, [T, H, P, 1]."""
    B: torch.Tensor
    """Input vectors of the state for each head, [T, H, 1, N]."""
    C: torch.Tensor
    """Output vectors of the state for each head, [T, H, 1, N]."""
    skip: torch.Tensor
    """Part of the output that does not pass through the state, [T, H, P]."""
    kind: torch.dtype

    @classmethod
    def of(cls, inputs: ScanInputs) -> "_Rows":
        kind = accumulator(inputs.x.dtype)
        H, G = inputs.x.shape[1], inputs.B.shape[1]
        x = inputs.x.to(kind)
        step = step_size(inputs.dt, inputs.dt_bias, inputs.dt_limit, kind)  # [T, H]

        def by_head(shared: torch.Tensor) -> torch.Tensor:
            wide = shared.to(kind)[:, :, None].expand(-1, G, H // G, -1)
            return wide.reshape(len(wide), H, 1, -1)

        return cls(
            decay=torch.exp(step * inputs.A)[..., None, None],
            inflow=(x * step[..., None])[..., None],
            B=by_head(inputs.B),
            C=by_head(inputs.C),
            skip=x * inputs.D[:, None],
            kind=kind,
        )

    def take(self, order: torch.Tensor) -> "_Rows":
        return _Rows(
            self.decay[order], self.inflow[order], self.B[order], self.C[order], self.skip[order], self.kind
        )

    def advance(self, h: torch.Tensor, rows: slice) -> torch.Tensor:
        """Advance h, [n, H, P, N], by one token each in place, and return the outputs [n, H, P]."""
        h.mul_(self.decay[rows]).add_(self.inflow[rows] * self.B[rows])
        return (h * self.C[rows]).sum(-1).add_(self.skip[rows])


def _prefill(state: torch.Tensor, rows: _Rows, plan: ChunkPlan, cut: int, out: torch.Tensor) -> None:
    # Longest piece first, so that the pieces that still run at token t are the first ones.
    starts = np.array(plan.piece_start[:-1], np.int64)
    lengths = np.diff(plan.piece_start)
    order = np.argsort(-lengths, kind="stable")
    running = [int((lengths > t).sum()) for t in range(int(lengths.max()))]
    by_time = np.concatenate([starts[order[:count]] + t for t, count in enumerate(running)]) + cut
    where = index_tensor(by_time, state.device)
    rows, noise = rows.take(where), plan.row_noise[where - cut]
    h = plan.slots.read(state).to(rows.kind)[index_tensor(order, state.device)]
    marks: dict[int, list[tuple[int, int]]] = {}
    for index, piece in enumerate(order.tolist()):
        end = (int(lengths[piece]), plan.slots.target_slots[piece])
        for depth, slot in [*plan.checkpoints(piece), end]:
            marks.setdefault(depth, []).append((index, slot))
    parts = []
    first = 0
    for t, count in enumerate(running):
        live = h[:count]
        parts.append(rows.advance(live, slice(first, first + count)))
        first += count
        _as_stored(live, noise[first - count : first], state.dtype)
        for index, slot in marks.get(t + 1, ()):
            state[slot] = h[index].to(state.dtype)
    out[where] = torch.cat(parts)
