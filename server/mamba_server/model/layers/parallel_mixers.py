"""A Mamba2 mixer and attention over the same rows, added up (Falcon-H1).

Called by `HybridModel` once per layer and step.
"""

import torch

from mamba_server.model.layers.attention import Attention, Turns
from mamba_server.model.layers.mamba2 import Mamba2Mixer
from mamba_server.model.step_plans import StepPlans


class ParallelMixers:
    """The two of one layer."""

    def __init__(self, mamba: Mamba2Mixer, attention: Attention) -> None:
        self.mamba, self.attention = mamba, attention

    def __call__(
        self,
        x: torch.Tensor,
        conv: torch.Tensor,
        ssm: torch.Tensor,
        kv: torch.Tensor,
        plans: StepPlans,
        turns: Turns | None,
    ) -> torch.Tensor:
        """x: [T, d]; caches as of the two, written. Returns [T, d]."""
        return self.mamba(x, conv, ssm, plans).add_(self.attention(x, kv, plans, turns))
