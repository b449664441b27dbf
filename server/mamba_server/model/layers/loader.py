"""How a layer gets its tensors: a place in the checkpoint, a device, a type."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch

from mamba_api.choices import Quantization
from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.packed_linear import ACTIVATIONS, PackedLinear, PackedMatrix, PackedWeight
from mamba_kernels.cpu.quantized_weight import QuantizedWeight
from mamba_kernels.cpu.rms_norm import RowNorm
from mamba_kernels.dispatch.operators import REFERENCE, Operators
from mamba_kernels.invariant import sound_row_tile
from mamba_kernels.precision import accumulator
from mamba_server.model.checkpoint.mapped_pages import give_back
from mamba_server.model.checkpoint.tensor_factors import Factors
from mamba_server.model.checkpoint.tensor_source import TensorSource
from mamba_server.model.layers.linear import Linear

Rows = Callable[[torch.Tensor], torch.Tensor]
"""[T, a] -> [T, b]"""
Norm = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]
"""(x, added) -> norm(x + added), all [T, a]. x becomes the sum; None adds nothing."""


@dataclass(frozen=True, slots=True)
class Loader:
    """A prefix of tensor names, and what their tensors become."""

    weights: TensorSource
    device: torch.device
    dtype: torch.dtype
    prefix: str = ""
    batch_invariant: bool = False
    """Layers take the kernels whose rows do not depend on each other."""
    operators: Operators = REFERENCE
    library: Library | None = None
    """The C++ kernels where they compute, in place of operators; None = they do not."""
    quantization: Quantization = "none"
    """How the C++ kernels hold matrices."""
    factors: Factors = field(default_factory=dict)
    """What rows of a layer's tensors are multiplied by."""
    layer: str = ""
    """Prefix of the layer that the factors are of."""
    norm_offset: float = 0.0
    """What is added to the weights of norms; in float32, as they are near zero then."""

    def at(self, *parts: str | int) -> "Loader":
        return replace(self, prefix=self.prefix + ".".join(map(str, parts)) + ".")

    def at_layer(self, index: int, factors: Factors) -> "Loader":
        """The place of a layer of the checkpoint, and what its tensors are multiplied by."""
        here = self.at("layers", index)
        return replace(here, factors=factors, layer=here.prefix)

    def tensor(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The tensor `name` below the prefix. Raises WeightsError if it is missing or has another shape."""
        wanted = dtype or self.dtype
        factor = self.factors.get((self.prefix + name).removeprefix(self.layer))
        if factor is None:
            return self.weights.take(self.prefix + name, shape, wanted, self.device)
        exact = self.weights.take(self.prefix + name, shape, accumulator(wanted), self.device)
        rows = factor.view(-1, *[1] * (len(shape) - 1)) if factor.dim() else factor
        scaled = (exact * rows.to(self.device)).to(wanted)
        give_back(exact)
        return scaled

    def wide(self, name: str, *shape: int) -> torch.Tensor:
        """A small tensor that enters sums: float32, or float64 in a float64 model."""
        return self.tensor(name, *shape, dtype=accumulator(self.dtype))

    def norm(self, name: str, width: int, eps: float) -> Norm:
        """The RMSNorm with the weight `name`."""
        weight, dtype = self.norm_weight(name, width), self.dtype
        if self.library is not None:
            return RowNorm(self.library, weight, eps, dtype)
        norm = self.operators.rms_norm
        return lambda x, added: norm(x, weight, eps, added, dtype)

    def norm_weight(self, name: str, width: int) -> torch.Tensor:
        """What an RMSNorm multiplies by: the weight `name` and what is added to it."""
        return self.wide(name, width) + self.norm_offset if self.norm_offset else self.tensor(name, width)

    def activates(self, activation: str) -> bool:
        """Whether `linear` applies it to its product."""
        return self.library is not None and activation in ACTIVATIONS

    @property
    def joins(self) -> bool:
        """Whether large matrices are joined for one product: where they are copied to a device anyway. On a
        CPU they would leave the file's mapping, which all processes share."""
        return self.library is None and self.device.type != "cpu"

    def linear(self, name: str, inputs: int, outputs: int, *, bias: bool, activation: str = "") -> Rows:
        """The product with the weight `name`; `activation`: one that this loader `activates`, or none."""
        return self.joined({name: outputs}, inputs, bias=bias, activation=activation)

    def joined(self, outputs: Mapping[str, int], inputs: int, *, bias: bool, activation: str = "") -> Rows:
        """One product with several weights, by name and number of outputs, which follow one another."""
        weight = one_matrix([self.tensor(f"{name}.weight", count, inputs) for name, count in outputs.items()])
        added = None
        if bias:
            added = one_matrix([self.tensor(f"{name}.bias", count) for name, count in outputs.items()])
        return self.product(weight, added, activation)

    def product(self, weight: torch.Tensor, bias: torch.Tensor | None, activation: str = "") -> Rows:
        """As `linear` with weight [outputs, inputs], not to be read any more, and bias [outputs]."""
        if self.library is not None:
            return PackedLinear(self.library, self.packed(weight), bias, activation)
        return self.plain(weight, bias)

    def packed(self, weight: torch.Tensor) -> PackedMatrix:
        """The matrix as the C++ kernels read it; `weight` is not to be read any more."""
        pack = PackedWeight if self.quantization == "none" else QuantizedWeight
        return pack(weight, give_back)

    def plain(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """The product by torch."""
        if not self.batch_invariant:
            return Linear(weight, bias)
        outputs, inputs = weight.shape
        tile = sound_row_tile(inputs, outputs, bias is not None, weight.dtype, weight.device)
        return Linear(weight, bias, tile)


def one_matrix(parts: list[torch.Tensor]) -> torch.Tensor:
    """Rows that follow one another; the parts are not to be read any more."""
    if len(parts) == 1:
        return parts[0]
    whole = torch.cat(parts)
    for part in parts:
        give_back(part)
    return whole
