"""Checks and names of the recurrence's tensors, shared by the kernels of prefill and decode."""

from typing import Any

import torch

from mamba_kernels.arguments import WrongArgument, check
from mamba_kernels.scan_inputs import ScanInputs

STATE_TYPES = (torch.float32, torch.float16)


def check_scan(state: torch.Tensor, inputs: ScanInputs, out: torch.Tensor) -> tuple[int, int, int, int, int]:
    """Check the tensors and return rows T, heads H, head size P, groups G, state size N.

    Raises WrongArgument.
    """
    device = state.device
    check("state", state, (None, None, None, None), dtypes=STATE_TYPES)
    _, H, P, N = state.shape
    check("x", inputs.x, (None, H, P), device=device)
    T = len(inputs.x)
    check("dt", inputs.dt, (T, H), device=device)
    check("B", inputs.B, (T, None, N), dtypes=(inputs.x.dtype,), device=device)
    G = inputs.B.shape[1]
    if not G or H % G:
        raise WrongArgument(f"B has {G} groups; their number must divide the {H} heads of state")
    check("C", inputs.C, (T, G, N), dtypes=(inputs.x.dtype,), device=device)
    for name in ("A", "D", "dt_bias"):
        check(name, getattr(inputs, name), (H,), device=device)
    check("out", out, (T, H, P), device=device)
    return T, H, P, G, N


def scan_arguments(
    state: torch.Tensor, inputs: ScanInputs, routes: torch.Tensor, out: torch.Tensor
) -> dict[str, Any]:
    """Return tensors and strides under the names of both kernels.

    `routes` are [3, n] int32 of a `SlotPlan`.
    """
    return {
        "state": state,
        "state_slab": state.stride(0),
        "state_head": state.stride(1),
        "state_row": state.stride(2),
        "x": inputs.x,
        "x_row": inputs.x.stride(0),
        "x_head": inputs.x.stride(1),
        "dt": inputs.dt,
        "dt_row": inputs.dt.stride(0),
        "A": inputs.A,
        "B": inputs.B,
        "B_row": inputs.B.stride(0),
        "B_group": inputs.B.stride(1),
        "C": inputs.C,
        "C_row": inputs.C.stride(0),
        "C_group": inputs.C.stride(1),
        "D": inputs.D,
        "dt_bias": inputs.dt_bias,
        "dt_min": float(inputs.dt_limit[0]),
        "dt_max": float(inputs.dt_limit[1]),
        "routes": routes,
        "route": routes.stride(0),
        "out": out,
        "out_row": out.stride(0),
        "out_head": out.stride(1),
    }
