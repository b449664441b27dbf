"""Inputs of the Mamba2 recurrence for a run of rows, the same for prefill and decode."""

from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True, slots=True)
class ScanInputs:
    """Inputs of the Mamba2 recurrence (Dao and Gu 2024, section 2) for T rows, in the names of its equations.

    h_t = exp(dt_t A) h_{t-1} + dt_t B_t x_t is a state, and y_t = C_t h_t + D x_t an output, where dt_t is
    softplus(dt + dt_bias), clamped to `dt_limit`. Rows may be strided. Head h reads group h // (H / G) of B
    and C.
    """

    x: torch.Tensor
    """Values, [T, H, P]."""
    dt: torch.Tensor
    """[T, H] projected step sizes, before bias and softplus"""
    A: torch.Tensor
    """[H] rates of the decay, negative"""
    B: torch.Tensor
    """[T, G, N] input vectors of the state"""
    C: torch.Tensor
    """[T, G, N] output vectors of the state"""
    D: torch.Tensor
    """[H] weights with which `x` is added to the output"""
    dt_bias: torch.Tensor
    """[H] bias of `dt`"""
    dt_limit: tuple[float, float]

    def of_rows(self, rows: slice) -> "ScanInputs":
        """Return the inputs of a range of rows."""
        return replace(self, x=self.x[rows], dt=self.dt[rows], B=self.B[rows], C=self.C[rows])
