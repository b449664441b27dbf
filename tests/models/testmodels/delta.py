"""Random rows for the gated delta rule."""

import math
from dataclasses import dataclass

import torch

from mamba_kernels.gated_delta import DeltaInputs


@dataclass
class Delta:
    """T rows, H value heads, G key heads; parts of one row, as a projection leaves them.

    by_channel: whether each channel of a key has a decay, instead of each head.
    """

    H: int
    G: int
    V: int
    K: int
    T: int
    dtype: torch.dtype = torch.float64
    seed: int = 0
    by_channel: bool = False

    def __post_init__(self) -> None:
        g = torch.Generator().manual_seed(self.seed)

        def rand(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=g, dtype=torch.float64)

        keys = self.G * self.K
        self.mixed = rand(self.T, 2 * keys + self.H * self.V).to(self.dtype)
        decays = (self.H, self.K) if self.by_channel else (self.H,)
        self.gates = rand(self.T, self.H + math.prod(decays)).to(self.dtype)
        self.A, self.dt_bias = -torch.exp(rand(self.H)), rand(*decays)
        if self.dtype != torch.float64:
            self.A, self.dt_bias = self.A.float(), self.dt_bias.float()

    @property
    def inputs(self) -> DeltaInputs:
        keys = self.G * self.K
        q, k, v = self.mixed.split([keys, keys, self.H * self.V], 1)
        a, b = self.gates.split([self.gates.shape[1] - self.H, self.H], 1)
        return DeltaInputs(
            q=q.unflatten(1, (self.G, self.K)),
            k=k.unflatten(1, (self.G, self.K)),
            v=v.unflatten(1, (self.H, self.V)),
            a=a.unflatten(1, (self.H, self.K)) if self.by_channel else a,
            b=b,
            A=self.A,
            dt_bias=self.dt_bias,
        )

    def wide(self) -> "Delta":
        """Return the same numbers in float64."""
        other = Delta(self.H, self.G, self.V, self.K, self.T, seed=self.seed, by_channel=self.by_channel)
        for name in ("mixed", "gates", "A", "dt_bias"):
            setattr(other, name, getattr(self, name).double())
        return other

    def part(self, rows: slice) -> "Delta":
        count = len(range(self.T)[rows])
        other = Delta(self.H, self.G, self.V, self.K, count, self.dtype, by_channel=self.by_channel)
        other.mixed, other.gates = self.mixed[rows], self.gates[rows]
        other.A, other.dt_bias = self.A, self.dt_bias
        return other
