"""The same work by mamba_ssm's Triton operators, if that package is installed: for comparison only."""

from collections.abc import Callable
from typing import Any

import torch

from mamba_kernels.scan_inputs import ScanInputs

CHUNK = 256
"""Chunk size of the models of mamba_ssm."""


def ssd_prefill(inputs: ScanInputs, pieces: int) -> Callable[[], object]:
    """Return a function that scans `pieces` pieces of equal length as one batch. Raises ImportError."""
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
    """Return a function that updates `state`, [n, H, P, N], by one token. Raises ImportError."""
    from mamba_ssm.ops.triton.selective_state_update import selective_state_update

    H, P, N = state.shape[1:]
    # The operator takes expanded tensors, and treats strides of 0 as "tied" weights.
    A = inputs.A[:, None, None].expand(H, P, N)
    D, dt_bias = (tensor[:, None].expand(H, P) for tensor in (inputs.D, inputs.dt_bias))
    dt = inputs.dt[:, :, None].expand(-1, H, P)

    def run() -> Any:
        return selective_state_update(
            state, inputs.x, dt, A, inputs.B, inputs.C, D=D, dt_bias=dt_bias, dt_softplus=True
        )

    return run
