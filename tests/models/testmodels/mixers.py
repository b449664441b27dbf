"""Rows of a Mamba2 mixer between its projections, for kernels that compute all of that in one call."""

import torch

from mamba_kernels.cpu.mixer import MixerWeights, PreparedMixer
from mamba_kernels.scan_inputs import ScanInputs
from testmodels.chunks import strided_cache

LIMIT = (0.01, 3.0)
EPS = 1e-5
SLOTS = 14

Sizes = tuple[int, int, int, int, int]
"""H, P, N, G, K"""
SIZES: list[Sizes] = [
    (4, 32, 128, 1, 4),
    (6, 5, 9, 2, 4),
    (1, 63, 100, 1, 2),
    (8, 1, 16, 8, 3),
    (3, 7, 257, 3, 1),
]
TYPES = [
    (torch.float32, torch.float32, 2e-5, 2e-5),
    (torch.bfloat16, torch.float32, 2e-2, 1e-2),
    (torch.float32, torch.float16, 2e-3, 2e-3),
]
"""of the rows, of the states, and how near the two come to float64"""


class MixerRows:
    """Weights, rows and states of a mixer; the same numbers in every type. Slots 1 to 4 have a state."""

    def __init__(self, T: int, sizes: Sizes, dtype: torch.dtype, state: torch.dtype, *, norm: bool) -> None:
        """Draw T rows of a mixer of `sizes` H, P, N, G, K."""
        H, P, N, G, K = sizes
        self.sizes = (H, P, N, G)
        generator = torch.Generator().manual_seed(H + N)

        def rand(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator)

        C = H * P + 2 * G * N
        self.weights = MixerWeights(
            conv_weight=rand(K, C),
            conv_bias=rand(C) if norm else None,
            A=-rand(H).exp(),
            D=rand(H),
            dt_bias=rand(H),
            norm=rand(H * P).to(dtype) if norm else None,
        )
        self.projected = rand(T, H * P + C + H + 5).to(dtype)[:, : H * P + C + H]
        self.window = strided_cache(SLOTS, K - 1, C, dtype=dtype)
        self.state = strided_cache(SLOTS, H, P, N, dtype=state)
        for slot in (1, 2, 3, 4):
            self.window[slot] = rand(K - 1, C).to(dtype)
            self.state[slot] = rand(H, P, N).to(state)

    def prepared(self) -> PreparedMixer:
        _, P, N, G = self.sizes
        return PreparedMixer(
            self.weights, head_dim=P, state_size=N, groups=G, dt_limit=LIMIT, norm_eps=EPS, norm_groups=G
        )

    def parts(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the gate, inputs of the convolution and step sizes of all rows, in float64."""
        H, P, N, G = self.sizes
        gate, inputs, dt = self.projected.double().split([H * P, H * P + 2 * G * N, H], dim=1)
        return gate, inputs, dt

    def conv_bias(self) -> torch.Tensor | None:
        """Return the bias in float64."""
        return None if self.weights.conv_bias is None else self.weights.conv_bias.double()

    def norm_weight(self) -> torch.Tensor | None:
        """Return the weight in float64."""
        return None if self.weights.norm is None else self.weights.norm.double()

    def scan(self, mixed: torch.Tensor, dt: torch.Tensor) -> ScanInputs:
        """Return the scan's inputs in float64 from the convolution's outputs, rounded as the rows are."""
        H, P, N, G = self.sizes
        weights = self.weights
        x, B, C = mixed.to(self.projected.dtype).double().split([H * P, G * N, G * N], dim=1)
        return ScanInputs(
            x.unflatten(1, (H, P)), dt, weights.A.double(), B.unflatten(1, (G, N)), C.unflatten(1, (G, N)),
            weights.D.double(), weights.dt_bias.double(), LIMIT,
        )  # fmt: skip
