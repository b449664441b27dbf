"""The weights of a layer's routed experts."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Experts:
    """E experts, each down(activation(up x)) or down(activation(gate x) * up x)."""

    up: torch.Tensor
    """[E, I, d], or [E, 2 I, d] with the gate's rows first"""
    down: torch.Tensor
    """[E, d, I]"""
    activation: str
    """silu, relu or relu2"""
    gated: bool

    @property
    def count(self) -> int:
        """E"""
        return self.up.shape[0]

    @property
    def inner(self) -> int:
        """I"""
        return self.down.shape[2]
