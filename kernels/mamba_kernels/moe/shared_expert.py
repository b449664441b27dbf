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
    logit: torch.Tensor | None = None
    """[n] float32, may be strided: its result counts for the sigmoid of it in each row; None = for 1."""
