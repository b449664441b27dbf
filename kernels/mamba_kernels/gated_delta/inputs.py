"""Inputs of the gated delta rule for a run of rows, the same for prefill and decode."""

from dataclasses import dataclass

import torch

LEAST_SQUARE = 1e-6
"""Number added to the sum of squares when queries and keys are normalised."""


@dataclass(frozen=True, slots=True)
class DeltaInputs:
    """Inputs of the gated delta rule (Yang et al. 2024) for T rows, in the names of its equations.

    S_t = g_t S_{t-1} + beta_t (v_t - g_t S_{t-1} k_t) k_t^T is a state, and o_t = S_t q_t an output.
    g_t = exp(A softplus(a_t + dt_bias)), beta_t = beta_scale sigmoid(b_t); queries and keys have
    length 1, and queries are divided by sqrt(K). Rows may be strided. Value head h reads key head
    h // (H / G).

    With `a` [T, H, K], each channel of a key has a decay of its own (Kimi delta attention): g_t is a diagonal
    matrix on the right of S_{t-1}.
    """

    q: torch.Tensor
    """Queries, [T, G, K]."""
    k: torch.Tensor
    """Keys, [T, G, K]."""
    v: torch.Tensor
    """Values, [T, H, V]."""
    a: torch.Tensor
    """[T, H] or [T, H, K] projected values for the decay g, before bias and softplus; a row is dense"""
    b: torch.Tensor
    """[T, H] projected values for beta, before the sigmoid"""
    A: torch.Tensor
    """[H] rates of the decay, negative"""
    dt_bias: torch.Tensor
    """[H] or [H, K] bias of `a`"""
    beta_scale: float = 1.0
    """Factor on beta. With 2, eigenvalues of the transition may be negative."""

    @property
    def by_channel(self) -> bool:
        """Whether each channel of a key has a decay of its own."""
        return self.a.dim() == 3
