"""The same work by mamba_ssm's Triton operators, where that package is installed: for comparison alone."""

from collections.abc import Callable
from typing import Any

import torch

from mamba_kernels.scan_inputs import ScanInputs

CHUNK = 256
"""What its own models use."""


def ssd_prefill(inputs: ScanInputs, pieces: int) -> Callable[[], object]:
    """Pieces of one length, as a batch of that many. Raises ImportError."""
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    def batch(tensor: torch.Tensor) -> torch.Tensor:
        together: torch.Tensor = tensor.unflatten(0, (pieces, -1))
        return together.contiguous()

    x, dt, B, C = (batch(tensor) for tensor in (inputs.x, inputs.dt, inputs.B, inputs.C))

    def run() -> Any:
        return mamba_chunk_scan_combined(
            x, dt, inputs.A, B, C, CHUNK, D=inputs.D, dt_bias=inputs.dt_bias, dt_softplus=True,
            return_final_states=True,
        )  # fmt: skip

    return run


def state_update(state: torch.Tensor, inputs: ScanInputs) -> Callable[[], object]:
    """state: [n, H, P, N] of the rows in order, written. Raises ImportError."""
    from mamba_ssm.ops.triton.selective_state_update import selective_state_update

    H, P, N = state.shape[1:]
    # It wants them expanded; with strides of 0, which it knows as "tied".
    A = inputs.A[:, None, None].expand(H, P, N)
    D, dt_bias = (tensor[:, None].expand(H, P) for tensor in (inputs.D, inputs.dt_bias))
    dt = inputs.dt[:, :, None].expand(-1, H, P)

    def run() -> Any:
        return selective_state_update(
            state, inputs.x, dt, A, inputs.B, inputs.C, D=D, dt_bias=dt_bias, dt_softplus=True
        )

    return run
