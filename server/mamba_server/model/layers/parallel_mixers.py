"""A Mamba2 mixer and attention over the same rows, whose results are added (Falcon-H1).

`HybridModel` calls each layer once per step.
"""

import torch

from mamba_kernels.fp8_pages import Pages
from mamba_server.model.layers.attention import Attention, Turns
from mamba_server.model.layers.mamba2 import Mamba2Mixer
from mamba_server.model.step_plans import StepPlans


class ParallelMixers:
    """Computes a Mamba2 mixer and attention of the same layer, and adds their results."""

    def __init__(self, mamba: Mamba2Mixer, attention: Attention) -> None:
        self.mamba, self.attention = mamba, attention

    def __call__(
        self,
        x: torch.Tensor,
        conv: torch.Tensor,
        ssm: torch.Tensor,
        kv: Pages,
        plans: StepPlans,
        turns: Turns | None,
        ring: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute one step of the rows `x`, [T, d]; return [T, d]. The caches of both mixers are written."""
        return self.mamba(x, conv, ssm, plans, ring).add_(self.attention(x, kv, plans, turns))
