"""Decode steps with a ring in plain torch on any device: repeated plain steps on copies of the states.

The inputs that wait are folded into the copy one after another, by the step of plain decoding, and then the
token of the step. So states in the type of the sums have the bits of plain decoding when they are written.
"""

from collections.abc import Callable

import numpy as np
import torch

from mamba_kernels.slot_plan import HostIntegers, SlotPlan, index_tensor
from mamba_kernels.state_replay.ring import RingPlan
from mamba_kernels.stochastic_rounding import round_to_float16_

Step = Callable[[torch.Tensor, torch.Tensor | None, SlotPlan, torch.Tensor], None]
"""One plain step: (states, inputs of the ring [n, width] or None for the token's own, plan, results)."""


def repeated_steps(
    state: torch.Tensor,
    step: Step,
    kind: torch.dtype,
    parts: list[torch.Tensor],
    plan: SlotPlan,
    lanes: RingPlan,
    ring: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Compute one token for each row, whose state may lack the inputs in the row's lane of `ring`.

    The missing inputs and then the token's own are computed into a copy of the state, by `step` one after
    another, and `out` gets the results. The copy is then written to `state` where `plan` says, or the token's
    input is written to `ring`, as `lanes` says. `kind` is the type of the copies, and `parts` are the inputs
    of the step's tokens.
    """
    lane, waiting, writes = lanes.host
    device, rows = state.device, np.arange(len(lane))
    states = plan.read(state).to(kind)
    for turn in range(int(waiting.max(initial=0))):
        some = rows[waiting > turn]
        inputs = ring[index_tensor(lane[some], device), turn]
        step(states, inputs, _in_place(some, device), out.new_empty(len(some), *out.shape[1:]))
    step(states, None, _in_place(rows, device), out)
    if len(some := rows[writes > 0]):
        _write(state, states[index_tensor(some, device)], plan, some)
    if len(some := rows[(writes == 0) & (lane >= 0)]):
        places = index_tensor(lane[some], device), index_tensor(waiting[some], device)
        kept = torch.cat([part[index_tensor(some, device)] for part in parts], dim=1)
        ring[places[0], places[1], : kept.shape[1]] = kept


def _write(state: torch.Tensor, states: torch.Tensor, plan: SlotPlan, some: HostIntegers) -> None:
    """Store the states of some rows where the plan says, rounded by the word of their row."""
    if state.dtype == torch.float16:
        states = states.contiguous()
        round_to_float16_(states, plan.device_noise[index_tensor(some, state.device)])
    SlotPlan(plan.device, np.ascontiguousarray(plan.host[:, some])).write(state, states)


def _in_place(rows: HostIntegers, device: torch.device) -> SlotPlan:
    """Return a plan by which the copies of some rows are updated in place."""
    return SlotPlan(device, np.array([rows, rows, np.full_like(rows, -1)], np.int64))
