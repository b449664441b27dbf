"""Decode step of the Mamba2 recurrence with a ring in plain torch, float64 included; see `repeated_steps`."""

from dataclasses import replace

import torch

from mamba_kernels.precision import accumulator
from mamba_kernels.scan_inputs import ScanInputs
from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.state_replay.repeated_steps import repeated_steps
from mamba_kernels.state_replay.ring import RingPlan
from mamba_kernels.state_update.reference import state_update


def state_replay(
    state: torch.Tensor,
    inputs: ScanInputs,
    plan: SlotPlan,
    lanes: RingPlan,
    ring: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Compute one step of the recurrence of `ScanInputs` for rows whose states may lack earlier inputs.

    The missing inputs are in the rows' lanes of `ring`, [lanes, inputs, width] of one layer. `lanes` says
    which rows write their states, `state` [slabs, H, P, N] with any strides, at the target and tracking slots
    of `plan`; each other row writes its own input to its lane, behind the inputs there. `out` is [n, H, P],
    written.
    """
    H, P = inputs.x.shape[1:]
    G, N = inputs.B.shape[1:]

    def step(states: torch.Tensor, waiting: torch.Tensor | None, one: SlotPlan, result: torch.Tensor) -> None:
        if waiting is None:
            state_update(states, inputs, one, result)
            return
        x, B, dt = waiting[:, : H * P + G * N + H].split([H * P, G * N, H], dim=1)
        B = B.unflatten(1, (G, N))
        state_update(states, replace(inputs, x=x.unflatten(1, (H, P)), dt=dt, B=B, C=B), one, result)

    parts = [inputs.x.flatten(1), inputs.B.flatten(1), inputs.dt]
    repeated_steps(state, step, accumulator(inputs.x.dtype), parts, plan, lanes, ring, out)
