"""The weights of the expert that every row goes to."""

from dataclasses import dataclass

import torch

from mamba_kernels.moe.expert_weights import ExpertWeights


@dataclass(frozen=True, slots=True)
class SharedExpert:
    """Weights of a shared expert, with its own inner size and the activation of the routed experts."""

    gate_up: ExpertWeights
    """First projections, with the gate's outputs first if there is a gate, [f or 2 f, d]."""
    down: ExpertWeights
    """Last projection, [d, f]."""
    logit: torch.Tensor | None = None
    """[n] float32, may be strided: its sigmoid weights the shared expert's result in each row; None = 1."""
