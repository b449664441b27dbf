"""`Loader`: hands a layer its tensors and kernels, for a place in the checkpoint, a device and a type."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import torch

from mamba_api.choices import Quantization
from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.packed_linear import (
    ACTIVATIONS,
    JoinedMatrix,
    PackedLinear,
    PackedMatrix,
    PackedWeight,
)
from mamba_kernels.cpu.quantized.block_numbers import BlockNumbers, join_numbers
from mamba_kernels.cpu.quantized.int4_weight import Int4Weight, pack_numbers
from mamba_kernels.cpu.quantized.int8_weight import QuantizedWeight
from mamba_kernels.cpu.rms_norm import RowNorm
from mamba_kernels.dispatch.operators import REFERENCE, Operators
from mamba_kernels.four_bit import FourBitMatrix
from mamba_kernels.four_bit import matrix as four_bit
from mamba_kernels.fp8 import Fp8Matrix
from mamba_kernels.fp8.matrix import GROUP, joined
from mamba_kernels.invariant import sound_row_tile
from mamba_kernels.moe import ExpertWeights, expert_weights
from mamba_kernels.precision import accumulator
from mamba_server.model.adapters.adapted_product import Part
from mamba_server.model.adapters.adapter_bank import AdapterBank
from mamba_server.model.checkpoint.mapped_pages import give_back
from mamba_server.model.checkpoint.tensor_factors import Factors
from mamba_server.model.checkpoint.tensor_source import TensorSource
from mamba_server.model.layers.four_bit_linear import FourBitLinear
from mamba_server.model.layers.fp8 import Fp8Linear, Fp8Norm, JoinedProducts, NormedRows
from mamba_server.model.layers.linear import Linear

Rows = Callable[[torch.Tensor], torch.Tensor]
"""Function of rows: [T, a] -> [T, b]"""
Norm = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]
"""Function (x, added) -> norm(x + added), all [T, a]. x becomes the sum; None adds nothing."""

Matrix = torch.Tensor | BlockNumbers | FourBitMatrix | Fp8Matrix
"""A matrix [outputs, inputs]: its weights, the integers or codes as which they are stored, or FP8."""

PACKED: dict[Quantization, Callable[[torch.Tensor, Callable[[torch.Tensor], None]], PackedMatrix]] = {
    "none": PackedWeight,
    "int8": QuantizedWeight,
    "int4": Int4Weight,
}
"""Forms of a matrix in the C++ kernels."""


@dataclass(frozen=True, slots=True)
class Loader:
    """Loads the tensors below one prefix of names, in the form of the kernels that will read them."""

    weights: TensorSource
    device: torch.device
    dtype: torch.dtype
    prefix: str = ""
    batch_invariant: bool = False
    """Whether layers use kernels in which a row's bits do not depend on the other rows."""
    operators: Operators = REFERENCE
    library: Library | None = None
    """The C++ kernels, if they are used instead of operators; otherwise None."""
    quantization: Quantization = "none"
    """Quantization of matrices. Without the C++ kernels it is none, fp8 or, if `four_bits` is set, int4."""
    four_bits: bool = False
    """Whether operators multiply by matrices of four bits, as on GPUs; never with quantization fp8."""
    factors: Factors = field(default_factory=dict)
    """Factors by which rows of the layer's tensors are multiplied."""
    layer: str = ""
    """Prefix of the layer to which the factors belong."""
    norm_offset: float = 0.0
    """Offset that is added to the weights of norms, in float32 because such weights are near zero."""
    adapters: AdapterBank | None = None
    """Places for adapters of projections; None = the model has none."""
    normed: NormedRows = field(default_factory=NormedRows)
    """FP8 form of rows that norms leave for products."""

    def at(self, *parts: str | int) -> "Loader":
        """Return a loader for the tensors whose names continue with `parts`, joined by dots."""
        return replace(self, prefix=self.prefix + ".".join(map(str, parts)) + ".")

    def at_layer(self, index: int, factors: Factors) -> "Loader":
        """Return the loader of a layer of the checkpoint, whose tensors are multiplied by `factors`."""
        here = self.at("layers", index)
        return replace(here, factors=factors, layer=here.prefix)

    def of_vocabulary(self) -> "Loader":
        """Return the loader of the embedding and of the head, which have eight bits where others have four.

        Each token's probability depends on a row of its own there, so an error there counts most
        (docs/notes/kernels-cpu.md). They are not FP8, and have no adapters.
        """
        other: dict[Quantization, Quantization] = {"int4": "int8", "fp8": "none"}
        quantization = other.get(self.quantization, self.quantization)
        return replace(self, quantization=quantization, adapters=None)

    def has(self, name: str) -> bool:
        """Return whether the checkpoint has the tensor `name` below the prefix."""
        return self.weights.has(self.prefix + name)

    def rows(self, name: str) -> int:
        """Return the first dimension of the tensor `name` below the prefix; 0 = there is none."""
        return self.weights.rows(self.prefix + name)

    def first_of(self, names: Sequence[str]) -> str:
        """Return the first of the names that the checkpoint has below the prefix, or else the first one."""
        return next(filter(self.has, names), names[0])

    def tensor(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return the tensor `name` below the prefix.

        Raises WeightsError if it is missing or has another shape.
        """
        target = dtype or self.dtype
        factor = self.factor(name)
        if factor is None:
            return self.weights.take(self.prefix + name, shape, target, self.device)
        exact = self.weights.take(self.prefix + name, shape, accumulator(target), self.device)
        rows = factor.view(-1, *[1] * (len(shape) - 1)) if factor.dim() else factor
        scaled = (exact * rows.to(self.device)).to(target)
        give_back(exact)
        return scaled

    def matrix(self, name: str, outputs: int, inputs: int) -> Matrix:
        """Return the matrix `name` below the prefix, as the checkpoint's integers if the kernels use them.

        With quantization fp8 it is FP8. Raises WeightsError.
        """
        if self.quantization == "fp8":
            return self.fp8(name, outputs, inputs)
        place = self.prefix + name
        if self.four_bits:
            codes = self.weights.four_bits(place, (outputs, inputs), self.dtype, self.device)
            if codes is not None:
                factor = self.factors.get(place.removeprefix(self.layer))
                return codes if factor is None else codes.scaled(factor.to(self.device))
        if self.library is not None and place.removeprefix(self.layer) not in self.factors:
            numbers = self.weights.numbers(place, (outputs, inputs), self.dtype)
            if numbers is not None:
                # Fewer bits than those of the checkpoint are fitted to the weights, like all others.
                return (
                    numbers.plain(self.dtype) if self.quantization == "int4" and numbers.bits > 4 else numbers
                )
        return self.tensor(name, outputs, inputs)

    def fp8(self, name: str, *shape: int) -> Fp8Matrix | torch.Tensor:
        """Return the matrix `name`, or one of each expert, as FP8: as it is stored, or rounded to FP8.

        A checkpoint in FP8 decides itself which of its matrices are not, and these stay as they are. Raises
        WeightsError.
        """
        place = self.prefix + name
        stored = self.weights.fp8(place, shape)
        if stored is None:
            weight = self.tensor(name, *shape)
            if self.weights.fp8_form:
                return weight
            rounded = Fp8Matrix.of(weight)
            give_back(weight)
            return rounded
        matrix = Fp8Matrix(stored.numbers.to(self.device), stored.scales.to(self.device))
        factor = self.factors.get(place.removeprefix(self.layer))
        return matrix if factor is None else matrix.scaled(factor)

    def wide(self, name: str, *shape: int) -> torch.Tensor:
        """Return a small tensor in the type of sums: float32, or float64 in a float64 model."""
        return self.tensor(name, *shape, dtype=accumulator(self.dtype))

    def norm(self, name: str, width: int, eps: float, *, before_product: bool = False) -> Norm:
        """Return the RMSNorm with the weight `name`.

        `before_product` says whether products alone read the norm's result, so that it may round to FP8 as
        well.
        """
        weight, dtype = self.norm_weight(name, width), self.dtype
        if before_product and self.quantization == "fp8":
            groups = -(-width // GROUP) if self.weights.fp8_form == "blocks" else 1
            return Fp8Norm(weight, eps, dtype, groups, self.operators, self.normed)
        if self.library is not None:
            return RowNorm(self.library, weight, eps, dtype)
        norm = self.operators.rms_norm
        return lambda x, added: norm(x, weight, eps, added, dtype)

    def norm_weight(self, name: str, width: int) -> torch.Tensor:
        """Return the `width` factors of an RMSNorm: the weight `name` plus the family's offset."""
        return self.wide(name, width) + self.norm_offset if self.norm_offset else self.tensor(name, width)

    def activates(self, activation: str) -> bool:
        """Return whether `linear` can apply this activation to its product."""
        return self.library is not None and activation in ACTIVATIONS

    @property
    def joins(self) -> bool:
        """Whether large matrices are joined into one product, which copies them.

        Matrices on another device are copied anyway. On a CPU, a copy would leave the file's mapping, which
        all processes share.
        """
        return self.library is None and self.device.type != "cpu"

    def linear(self, name: str, inputs: int, outputs: int, *, bias: bool, activation: str = "") -> Rows:
        """Return the product with the weight `name`; `activation`: one that the loader `activates`, or ""."""
        return self.join({name: outputs}, inputs, bias=bias, activation=activation)

    def join(self, outputs: Mapping[str, int], inputs: int, *, bias: bool, activation: str = "") -> Rows:
        """Return one product with several weights, given by name and number of outputs, one after another."""
        weights = [self.matrix(f"{name}.weight", count, inputs) for name, count in outputs.items()]
        added = None
        if bias:
            added = one_matrix([self.tensor(f"{name}.bias", count) for name, count in outputs.items()])
        return self.product_of(weights, added, activation, parts=self.parts(outputs))

    def parts(self, outputs: Mapping[str, int]) -> list[Part]:
        """Return the parts of a product with several projections, given like those of `join`."""
        starts = (sum([*outputs.values()][:number]) for number in range(len(outputs)))
        return [
            self.part(name, start, count)
            for start, (name, count) in zip(starts, outputs.items(), strict=True)
        ]

    def factor(self, name: str) -> torch.Tensor | None:
        """Return the factor by which the tensor `name` below the prefix is multiplied; None = 1."""
        return self.factors.get((self.prefix + name).removeprefix(self.layer))

    def module(self, weight: str) -> str:
        """Return the name of the module of a weight below the prefix."""
        return (self.prefix + weight).removesuffix(".weight")

    def part(self, name: str, start: int, outputs: int, rows: torch.Tensor | None = None) -> Part:
        """Return the part of a product that has the outputs of the projection `name` from `start` on.

        `outputs` is the number of outputs of the projection. `rows` are the outputs that are in the product;
        None = all.
        """
        module = self.prefix + name
        factor = self.factors.get(f"{module}.weight".removeprefix(self.layer))
        return Part(module, start, outputs, rows, factor)

    def product(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        activation: str = "",
        *,
        parts: Sequence[Part],
    ) -> Rows:
        """Return the product with weight [outputs, inputs] and bias [outputs].

        `parts`: projections of the checkpoint that the rows of the weight come from, for adapters. The caller
        must not read `weight` afterwards.
        """
        return self.product_of([weight], bias, activation, parts=parts)

    def product_of(
        self,
        weights: Sequence[Matrix],
        bias: torch.Tensor | None,
        activation: str = "",
        *,
        parts: Sequence[Part],
    ) -> Rows:
        """Return the product with matrices whose outputs follow one another, and bias [all outputs].

        `parts`: projections of the checkpoint that the outputs come from, for adapters. The caller must not
        read the matrices afterwards.
        """
        inputs = weights[0].shape[1]
        if self.library is None:
            return self.adapted(self._of_operators(weights, bias), inputs, parts)
        packed = self.pack_parts(weights)
        product = PackedLinear(self.library, packed, bias, activation)
        if self.adapters is None:
            return product
        linear = PackedLinear(self.library, packed, bias) if activation else product
        return self.adapters.adapt(product, linear, activation, inputs, tuple(parts), self.library)

    def adapted(self, product: Rows, inputs: int, parts: Sequence[Part]) -> Rows:
        """Return a product without activation that adapters can change, if the engine has places.

        `parts` are as in `product_of`. Each call reserves places of its own, even for the same product.
        """
        if self.adapters is None:
            return product
        return self.adapters.adapt(product, product, "", inputs, tuple(parts), self.library)

    def _of_operators(self, weights: Sequence[Matrix], bias: torch.Tensor | None) -> Rows:
        """Return the product of matrices that follow one another, by torch, in four bits or in FP8."""
        if self.quantization == "fp8":
            return self._in_fp8(weights, bias)
        parts: list[torch.Tensor | FourBitMatrix] = []
        for is_plain, group in groupby(weights, lambda each: isinstance(each, torch.Tensor)):
            if is_plain:
                parts.append(
                    self.fitted(one_matrix([each for each in group if isinstance(each, torch.Tensor)]))
                )
            else:
                parts += four_bit.join([each for each in group if isinstance(each, FourBitMatrix)])
        if len(parts) == 1 and isinstance(parts[0], torch.Tensor):
            return self.plain(parts[0], bias)
        products: list[Linear | FourBitMatrix] = []
        begun = 0
        for part in parts:
            end = begun + part.shape[0]
            own = None if bias is None else bias[begun:end]
            products.append(self.plain(part, own) if isinstance(part, torch.Tensor) else part)
            begun = end
        product = self.operators.four_bit_product
        return FourBitLinear(products, bias, product, invariant=self.batch_invariant)

    def _in_fp8(self, weights: Sequence[Matrix], bias: torch.Tensor | None) -> Rows:
        """Return the product in FP8. Neighbours of one form become one matrix."""
        products: list[Rows] = []
        start = 0
        for groups, group in groupby(weights, _groups):
            parts = list(group)
            end = start + sum(part.shape[0] for part in parts)
            own = None if bias is None else bias[start:end]
            if groups:
                whole = joined([each for each in parts if isinstance(each, Fp8Matrix)])
                products.append(Fp8Linear(whole, own, self.dtype, self.operators, self.normed))
            else:
                plain = one_matrix([each for each in parts if isinstance(each, torch.Tensor)])
                products.append(self.plain(plain, own))
            start = end
        return products[0] if len(products) == 1 else JoinedProducts(products)

    def fits(self, inputs: int) -> bool:
        """Return whether operators get ordinary matrices with so many inputs in four bits."""
        return self.four_bits and self.quantization == "int4" and four_bit.fits_runs(inputs)

    def fitted(self, weight: torch.Tensor) -> torch.Tensor | FourBitMatrix:
        """Fit a matrix to four bits if operators multiply by such matrices; otherwise return it unchanged.

        The caller must not read `weight` afterwards.
        """
        if not self.fits(weight.shape[1]):
            return weight
        codes = FourBitMatrix.fit(weight)
        give_back(weight)
        return codes

    def one_weight(self, parts: Sequence[Matrix]) -> ExpertWeights:
        """Join matrices of an expert by their outputs into one matrix for operators.

        Codes and FP8 that cannot be one matrix become ordinary weights.
        """
        packed = [each for each in parts if isinstance(each, FourBitMatrix | Fp8Matrix)]
        if len(packed) == len(parts) and (joint := expert_weights.joined(packed)) is not None:
            return joint
        whole = one_matrix([self.widened(each) for each in parts if not isinstance(each, BlockNumbers)])
        return whole if packed else self.fitted(whole)

    def widened(self, matrix: ExpertWeights) -> torch.Tensor:
        """Return the ordinary weights of one matrix."""
        return matrix if isinstance(matrix, torch.Tensor) else matrix.plain(self.dtype)

    def pack(self, weight: torch.Tensor) -> PackedMatrix:
        """Return the matrix as the C++ kernels read it. The caller must not read `weight` afterwards."""
        return PACKED[self.quantization](weight, give_back)

    def pack_parts(self, weights: Sequence[Matrix]) -> PackedMatrix | JoinedMatrix:
        """Return matrices whose outputs follow one another as the C++ kernels read them.

        Neighbours of one form become one matrix. The caller must not read the matrices afterwards.
        """
        packed: list[PackedMatrix] = []
        for is_plain, group in groupby(weights, lambda each: isinstance(each, torch.Tensor)):
            parts = list(group)
            if is_plain:
                packed.append(
                    self.pack(one_matrix([each for each in parts if isinstance(each, torch.Tensor)]))
                )
            else:
                stored = join_numbers([each for each in parts if isinstance(each, BlockNumbers)])
                packed += [pack_numbers(each) for each in stored]
        return packed[0] if len(packed) == 1 else JoinedMatrix(packed)

    def plain(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """Return a product that torch computes."""
        if not self.batch_invariant:
            return Linear(weight, bias)
        outputs, inputs = weight.shape
        tile = sound_row_tile(inputs, outputs, bias is not None, weight.dtype, weight.device)
        return Linear(weight, bias, tile)


def _groups(matrix: Matrix) -> int:
    """Return the number of scales of an output; 0 = the matrix is not FP8."""
    return matrix.groups if isinstance(matrix, Fp8Matrix) else 0


def rows_of(matrix: Matrix, rows: torch.Tensor | slice) -> Matrix:
    """Return the rows `rows` of a matrix."""
    return matrix[rows] if isinstance(matrix, torch.Tensor) else matrix.select(rows)


def one_matrix(parts: list[torch.Tensor]) -> torch.Tensor:
    """Join matrices by their rows. The caller must not read the parts afterwards."""
    if len(parts) == 1:
        return parts[0]
    whole = torch.cat(parts)
    for part in parts:
        give_back(part)
    return whole
