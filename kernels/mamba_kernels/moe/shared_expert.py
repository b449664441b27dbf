"""The weights of the expert that every row goes to."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class SharedExpert:
    """Weights of a shared expert, with its own inner size and the activation of the routed experts."""

    gate_up: torch.Tensor
    """[f or 2 f, d]"""
    down: torch.Tensor
    """[d, f]"""
    logit: torch.Tensor | None = None
    """[n] float32, may be strided: its sigmoid weights the shared expert's result in each row; None = 1."""
    gate_up_scales: torch.Tensor | None = None
    """[f or 2 f, groups] float32: scales of weights that are FP8; None = they are not."""
    down_scales: torch.Tensor | None = None
    """[d, groups]"""
