"""Rows of a mixer of the gated delta rule between its projections, for kernels that compute all of that."""

import torch

from mamba_kernels.cpu.delta_mixer import DeltaWeights, GatedDeltaCalls
from mamba_kernels.cpu.library import Library
from mamba_kernels.gated_delta import DeltaInputs
from testmodels.chunks import strided_cache

EPS = 1e-5
SLOTS = 14

Sizes = tuple[int, int, int, int, int]
"""Value heads H, key heads G, V, K, taps"""


class DeltaMixerRows:
    """Weights, rows and states of a mixer; the same numbers in every type. Slots 1 to 4 have a state."""

    def __init__(self, T: int, sizes: Sizes, dtype: torch.dtype, state: torch.dtype) -> None:
        H, G, V, K, taps = self.sizes = sizes
        generator = torch.Generator().manual_seed(H + K)

        def rand(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator)

        self.values, C = H * V, 2 * G * K + H * V
        self.widths = (C, H * V, H, H)
        self.weights = DeltaWeights(
            conv_weight=rand(taps, C), A=-rand(H).exp(), dt_bias=rand(H), norm=rand(V) + 1
        )
        width = sum(self.widths)
        self.projected = rand(T, width + 5).to(dtype)[:, :width]
        self.window = strided_cache(SLOTS, taps - 1, C, dtype=dtype)
        self.state = strided_cache(SLOTS, H, V, K, dtype=state)
        for slot in (1, 2, 3, 4):
            self.window[slot] = rand(taps - 1, C).to(dtype)
            self.state[slot] = rand(H, V, K).to(state)

    def calls(self, library: Library) -> GatedDeltaCalls:
        _, G, _, K, _ = self.sizes
        return GatedDeltaCalls(library, self.weights, key_heads=G, key_dim=K, norm_eps=EPS)

    def parts(self) -> tuple[torch.Tensor, ...]:
        """Return the inputs of the convolution, gate, b and a of all rows, in float64."""
        return self.projected.double().split(self.widths, dim=1)

    def rule(self, mixed: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> DeltaInputs:
        """Return the rule's inputs in float64 from the convolution's outputs, rounded as the rows are."""
        H, G, V, K, _ = self.sizes
        q, k, v = mixed.to(self.projected.dtype).double().split([G * K, G * K, H * V], dim=1)
        return DeltaInputs(
            q.unflatten(1, (G, K)), k.unflatten(1, (G, K)), v.unflatten(1, (H, V)), a, b,
            self.weights.A.double(), self.weights.dt_bias.double(),
        )  # fmt: skip
