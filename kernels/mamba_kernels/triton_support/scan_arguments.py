"""The checks of what the recurrence reads, the same for prefill and decode."""

import torch

from mamba_kernels.scan_inputs import ScanInputs
from mamba_kernels.triton_support.arguments import UnsupportedArgument, check

STATE_TYPES = (torch.float32, torch.float16)


def check_scan(state: torch.Tensor, inputs: ScanInputs, out: torch.Tensor) -> tuple[int, int, int, int, int]:
    """Raises UnsupportedArgument; returns rows T, heads H, head size P, groups G, state size N."""
    device = state.device
    check("state", state, (None, None, None, None), dtypes=STATE_TYPES)
    _, H, P, N = state.shape
    check("x", inputs.x, (None, H, P), device=device)
    T = len(inputs.x)
    check("dt", inputs.dt, (T, H), device=device)
    check("B", inputs.B, (T, None, N), dtypes=(inputs.x.dtype,), device=device)
    G = inputs.B.shape[1]
    if not G or H % G:
        raise UnsupportedArgument(f"B has {G} groups; their number must divide the {H} heads of state")
    check("C", inputs.C, (T, G, N), dtypes=(inputs.x.dtype,), device=device)
    for name in ("A", "D", "dt_bias"):
        check(name, getattr(inputs, name), (H,), device=device)
    check("out", out, (T, H, P), device=device)
    return T, H, P, G, N
