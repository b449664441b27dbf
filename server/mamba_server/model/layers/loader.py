"""How a layer gets its tensors: a place in the checkpoint, a device, a type."""

from dataclasses import dataclass, replace

import torch

from mamba_kernels.invariant import sound_row_tile
from mamba_server.model.layers.linear import Linear
from mamba_server.model.weights import Weights


@dataclass(frozen=True, slots=True)
class Loader:
    """A prefix of tensor names, and what their tensors become."""

    weights: Weights
    device: torch.device
    dtype: torch.dtype
    prefix: str = ""
    batch_invariant: bool = False
    """Layers take the kernels whose rows do not depend on each other."""

    def at(self, *parts: str | int) -> "Loader":
        return replace(self, prefix=self.prefix + ".".join(map(str, parts)) + ".")

    def tensor(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The tensor `name` below the prefix. Raises WeightsError if it is missing or has another shape."""
        return self.weights.take(self.prefix + name, shape, dtype or self.dtype, self.device)

    def wide(self, name: str, *shape: int) -> torch.Tensor:
        """A small tensor that enters sums: float32, or float64 in a float64 model."""
        kind = torch.float64 if self.dtype == torch.float64 else torch.float32
        return self.tensor(name, *shape, dtype=kind)

    def linear(self, name: str, inputs: int, outputs: int, *, bias: bool) -> Linear:
        return self.tiled(
            self.tensor(f"{name}.weight", outputs, inputs),
            self.tensor(f"{name}.bias", outputs) if bias else None,
        )

    def tiled(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        if not self.batch_invariant:
            return Linear(weight, bias)
        outputs, inputs = weight.shape
        tile = sound_row_tile(inputs, outputs, bias is not None, weight.dtype, weight.device)
        return Linear(weight, bias, tile)
