"""Decode step of the gated delta rule with a ring in plain torch, float64 included; see `repeated_steps`."""

from dataclasses import replace

import torch

from mamba_kernels.gated_delta.inputs import DeltaInputs
from mamba_kernels.gated_delta.reference import gated_delta_update
from mamba_kernels.precision import accumulator
from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.state_replay.repeated_steps import repeated_steps
from mamba_kernels.state_replay.ring import RingPlan


def gated_delta_replay(
    state: torch.Tensor,
    inputs: DeltaInputs,
    plan: SlotPlan,
    lanes: RingPlan,
    ring: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Compute one token for each row, whose state may lack inputs of earlier tokens, and write `out`.

    The missing inputs are in the row's lane of `ring`. `state` is [slabs, H, V, K] and `out` is [n, H, V];
    `state` and `ring` are written where `state_replay` writes its own.
    """
    H, V = inputs.v.shape[1:]
    G, K = inputs.k.shape[1:]

    def step(states: torch.Tensor, waiting: torch.Tensor | None, one: SlotPlan, result: torch.Tensor) -> None:
        if waiting is None:
            gated_delta_update(states, inputs, one, result)
            return
        widths = [G * K, H * V, inputs.a[0].numel(), H]
        k, v, a, b = waiting[:, : sum(widths)].split(widths, dim=1)
        k, a = k.unflatten(1, (G, K)), a.unflatten(1, inputs.a.shape[1:])
        gated_delta_update(states, replace(inputs, q=k, k=k, v=v.unflatten(1, (H, V)), a=a, b=b), one, result)

    parts = [inputs.k.flatten(1), inputs.v.flatten(1), inputs.a.flatten(1), inputs.b]
    repeated_steps(state, step, accumulator(inputs.v.dtype), parts, plan, lanes, ring, out)
