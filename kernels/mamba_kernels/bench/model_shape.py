"""Shapes of published models, as far as kernels depend on them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Shape of a model: H heads of P, state size N, G groups; hidden size d; attention; vocabulary."""

    H: int
    P: int
    N: int
    G: int
    d: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    taps: int = 4

    @property
    def inner(self) -> int:
        return self.H * self.P

    @property
    def channels(self) -> int:
        """Channels of the convolution: x | B | C."""
        return self.inner + 2 * self.G * self.N


MODEL_SHAPES = {
    "nemotron-h-8b": ModelShape(128, 64, 128, 8, 4096, 32, 8, 128, 131_072),
    "nemotron-nano-9b-v2": ModelShape(128, 80, 128, 8, 4480, 40, 8, 128, 131_072),
    "granite-4.0-h-tiny": ModelShape(48, 64, 128, 1, 1536, 12, 4, 128, 100_352),
    "granite-4.0-h-350m": ModelShape(48, 32, 128, 1, 768, 12, 4, 64, 100_352),
    "falcon-h1-7b": ModelShape(24, 128, 256, 1, 3072, 12, 2, 128, 130_048),
}
