"""The expert that every row goes to."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class SharedExpert:
    """Its inner size is its own; its activation is that of the routed ones."""

    gate_up: torch.Tensor
    """[f or 2 f, d]"""
    down: torch.Tensor
    """[d, f]"""
    weight: torch.Tensor | None = None
    """[n] float32, what its result counts for in each row; None = 1."""
