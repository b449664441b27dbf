"""Decode step of the Mamba2 recurrence in plain torch on any device, float64 included.

Called by the Mamba2 mixer for the rows that decode. Large states are updated in place, one sequence at a
time; small ones are gathered, updated together and scattered. The choice depends on the size of one state
alone, so a row's result does not depend on the batch.
"""

import torch

from mamba_kernels.precision import accumulator
from mamba_kernels.scan_inputs import ScanInputs
from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.step_size import step_size
from mamba_kernels.stochastic_rounding import round_to_float16_

IN_PLACE_ELEMENTS = 1 << 17
"""Elements of a state from which on it is updated in place: a copy would cost more than separate calls."""
GATHER_ELEMENTS = 1 << 23
"""Bound on the elements of states that are gathered at once; one state may exceed it."""
CACHED_ELEMENTS = 1 << 17
"""Elements of a state that are updated at once: half a megabyte, which stays in a core's cache."""


def state_update(state: torch.Tensor, inputs: ScanInputs, plan: SlotPlan, out: torch.Tensor) -> None:
    """Compute one step of the recurrence of `ScanInputs` for each row.

    `state` is [slabs, H, P, N], any strides, written at the plan's targets and tracking slots; `out` is [n,
    H, P], written.
    """
    x, B, C = inputs.x, inputs.B, inputs.C
    kind = accumulator(x.dtype)
    n, H, P = x.shape
    G, N = B.shape[1:]
    step = step_size(inputs.dt, inputs.dt_bias, inputs.dt_limit, kind)  # [n, H]
    decay = torch.exp(step * inputs.A)  # [n, H]
    x, B, C = x.to(kind), B.to(kind), C.to(kind)
    inflow = (x * step[..., None]).view(n, G, -1, 1)  # [n, G, H/G*P, 1]
    dense = state.stride()[1:] == (P * N, N, 1)
    if dense and state.dtype == kind and H * P * N >= IN_PLACE_ELEMENTS:
        y = _update_in_place(state, inflow, decay, B, C, plan)
    else:
        y = inflow.new_empty(n, H, P)
        for rows, part in plan.split(max(1, GATHER_ELEMENTS // (H * P * N))):
            y[rows] = _update_gathered(state, inflow[rows], decay[rows], B[rows], C[rows], part)
    out.copy_(torch.addcmul(y.view(n, H, P), x, inputs.D[:, None]))


def _update_gathered(
    state: torch.Tensor,
    inflow: torch.Tensor,
    decay: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    plan: SlotPlan,
) -> torch.Tensor:
    """Gather, update and scatter the states of all rows of `plan` at once; return the outputs."""
    n, G, N = B.shape
    h = plan.read(state).to(inflow.dtype).mul_(decay[..., None, None])  # [n, H, P, N]
    rows = h.view(n, G, -1, N)
    rows.addcmul_(inflow, B[:, :, None])
    y = torch.bmm(rows.view(n * G, -1, N), C.reshape(n * G, N, 1))
    if state.dtype == torch.float16:
        round_to_float16_(h, plan.device_noise)
    plan.write(state, h)
    return y.view(h.shape[:3])


def _update_in_place(
    state: torch.Tensor,
    inflow: torch.Tensor,
    decay: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    plan: SlotPlan,
) -> torch.Tensor:
    """Update states without copies, block by block of heads, so that a block stays in the cache.

    `inflow` are the inputs times step sizes. Return the outputs.
    """
    n, G = inflow.shape[:2]
    H, P, N = state.shape[1:]
    block = max(1, min(H // G, CACHED_ELEMENTS // (P * N)))
    inflow = inflow.view(n, H, P, 1)
    y = inflow.new_empty(n, H, P)
    parts = [
        (slice(first, min(first + block, (group + 1) * (H // G))), group)
        for group in range(G)
        for first in range(group * (H // G), (group + 1) * (H // G), block)
    ]
    for i, (source, target, track) in enumerate(
        zip(plan.source_slots, plan.target_slots, plan.track_slots, strict=True)
    ):
        h = state[target]
        if source < 0:
            h.zero_()
        before = h if source < 0 else state[source]
        for heads, group in parts:
            part = h[heads]
            torch.mul(before[heads], decay[i, heads, None, None], out=part)
            part.addcmul_(inflow[i, heads], B[i, group])
            torch.mv(part.view(-1, N), C[i, group], out=y[i, heads].view(-1))
        if track >= 0:
            state[track].copy_(h)
    return y
