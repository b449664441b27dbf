"""`FourBitMatrix`: a matrix, or one of each expert, whose weights are codes of four bits with scales.

The loader makes them of published numbers or fits them to ordinary weights; `four_bit_product` and the
mixture of experts multiply by them. No weight is ever stored as an ordinary number.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, Self

import torch

from mamba_kernels.four_bit.fit import SMALLEST, fit_integers
from mamba_kernels.precision import accumulator

RUN = 32
"""Inputs whose codes lie in 16 bytes, one after another; groups of integers are whole runs."""
HALF = RUN // 2
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Values of the lower three bits of a floating point code; the fourth is its sign."""
E8M0_BIAS = 127
"""Added to the exponents of scales that are powers of two."""
_FITTED_WEIGHTS = 1 << 24
"""Weights that are fitted at once, since the fit holds several copies in float32."""


class Code(StrEnum):
    """Meaning of the codes and the scales of a matrix."""

    INTEGER = "integer"
    """float16 scale * (code - 8)"""
    INTEGER_ZEROS = "integer_zeros"
    """float16 scale * (code - zero), with a zero of each group"""
    NVFP4 = "nvfp4"
    """e2m1 * e4m3 scale of 16 inputs, and a factor of each output"""
    MXFP4 = "mxfp4"
    """e2m1 * power of two of 32 inputs, and a factor of each output"""


@dataclass(frozen=True, slots=True)
class FourBitMatrix:
    """A matrix [outputs, inputs], or [experts, outputs, inputs]; `...` below is nothing or the experts."""

    code: Code
    codes: torch.Tensor
    """[..., outputs, inputs / 2] uint8: byte 16 r + j holds the codes of the inputs 32 r + j in its low half
    and 32 r + 16 + j in its high half."""
    scales: torch.Tensor
    """[..., outputs, groups]: float16 for integers, else uint8 that hold an e4m3 number or the exponent of a
    power of two plus 127, where 0 stands for zero."""
    group: int
    """Inputs that share a scale: 16 of NVFP4, else a multiple of `RUN`, or at least all inputs."""
    zeros: torch.Tensor | None = None
    """[..., outputs, groups] uint8: the number that stands for zero; None = 8."""
    factors: torch.Tensor | None = None
    """[..., outputs] float32, by which products are multiplied; None = 1."""
    order: torch.Tensor | None = None
    """[..., inputs] int32: the place in a row of x of each input of the matrix; None = the same order."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the weights: (outputs, inputs), or (experts, outputs, inputs)."""
        return (*self.codes.shape[:-1], 2 * self.codes.shape[-1])

    @property
    def device(self) -> torch.device:
        return self.codes.device

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors().values())

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors by the names of their fields."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}

    @classmethod
    def fit(cls, weight: torch.Tensor) -> Self:
        """Fit integers in groups of `RUN` inputs to a matrix [outputs, inputs] of ordinary weights."""
        outputs, inputs = weight.shape
        codes = torch.empty(outputs, inputs // 2, dtype=torch.uint8, device=weight.device)
        scales = torch.empty(outputs, inputs // RUN, dtype=torch.float16, device=weight.device)
        step = max(1, _FITTED_WEIGHTS // inputs)
        for first in range(0, outputs, step):
            rows = slice(first, first + step)
            scale, numbers = fit_integers(weight[rows].float().unflatten(1, (-1, RUN)).permute(2, 0, 1))
            scales[rows] = scale
            codes[rows] = packed((numbers - SMALLEST).to(torch.uint8).permute(1, 2, 0).flatten(1))
        return cls(Code.INTEGER, codes, scales, RUN)

    def select(self, rows: torch.Tensor | slice) -> "FourBitMatrix":
        """Return the matrix of the outputs `rows`."""
        return self.mapped(lambda tensor: tensor[rows], kept=("order",))

    def expert(self, index: torch.Tensor) -> "FourBitMatrix":
        """Return the matrix of one expert; `index`: [1] integer on the device."""
        return self.mapped(lambda tensor: tensor.index_select(0, index)[0])

    def mapped(
        self, change: Callable[[torch.Tensor], torch.Tensor], kept: tuple[str, ...] = ()
    ) -> "FourBitMatrix":
        """Return the matrix with the results of `change` for its tensors, except for the fields `kept`."""
        own: dict[str, Any] = {
            name: change(tensor) for name, tensor in self.tensors().items() if name not in kept
        }
        return replace(self, **own)

    def scaled(self, rows: torch.Tensor) -> "FourBitMatrix":
        """Return the matrix with its outputs multiplied by `rows`, [outputs] or []."""
        factors = rows.to(torch.float32).expand(self.shape[:-1])
        return replace(self, factors=factors.contiguous() if self.factors is None else factors * self.factors)

    def alike(self, other: "FourBitMatrix") -> bool:
        """Return whether both have one code, the same tensors, and equally many groups of one size."""
        own, others = self.tensors(), other.tensors()
        same_scales = self.scales.shape[-1] == other.scales.shape[-1] and self.group == other.group
        return self.code is other.code and own.keys() == others.keys() and same_scales

    def joins(self, other: "FourBitMatrix") -> bool:
        """Return whether both can be one matrix, in which the outputs of `other` follow those of this one."""
        if not self.alike(other) or self.shape[-1] != other.shape[-1]:
            return False
        return self.order is None or other.order is None or torch.equal(self.order, other.order)

    def plain(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the weights [outputs, inputs] of one matrix, rounded once to `dtype`."""
        wide = accumulator(dtype)
        codes, inputs = unpacked(self.codes), self.shape[-1]
        spread = min(self.group, inputs)
        scales = self._scales(wide).repeat_interleave(spread, -1)[..., :inputs]
        if self.code in (Code.INTEGER, Code.INTEGER_ZEROS):
            zeros: torch.Tensor | int = -SMALLEST
            if self.zeros is not None:
                zeros = self.zeros.to(wide).repeat_interleave(spread, -1)[..., :inputs]
            values: torch.Tensor = codes.to(wide) - zeros
        else:
            table = torch.tensor([*E2M1, *(-value for value in E2M1)], dtype=wide, device=codes.device)
            values = table[codes.long()]
        values *= scales
        if self.factors is not None:
            values *= self.factors.to(wide).unsqueeze(-1)
        if self.order is None:
            return values.to(dtype)
        return torch.empty_like(values, dtype=dtype).index_copy_(-1, self.order.long(), values.to(dtype))

    def _scales(self, wide: torch.dtype) -> torch.Tensor:
        if self.code is Code.NVFP4:
            numbers: torch.Tensor = self.scales.view(torch.float8_e4m3fn).to(wide)
            return numbers
        if self.code is Code.MXFP4:
            powers = torch.exp2(self.scales.to(wide) - E8M0_BIAS)
            return powers.masked_fill(self.scales == 0, 0.0)
        return self.scales.to(wide)


def packed(codes: torch.Tensor) -> torch.Tensor:
    """Return codes [..., inputs], one in each byte, as [..., inputs / 2] in the order of `FourBitMatrix`."""
    halves = codes.unflatten(-1, (-1, 2, HALF))
    both: torch.Tensor = halves[..., 0, :] | halves[..., 1, :] << 4
    return both.flatten(-2)


def unpacked(codes: torch.Tensor) -> torch.Tensor:
    """Return the codes [..., inputs] of bytes [..., inputs / 2]."""
    runs = codes.unflatten(-1, (-1, HALF))
    return torch.stack([runs & 15, runs >> 4], -2).flatten(-3)


def nvfp4_matrix(codes: torch.Tensor, scales: torch.Tensor, factor: float) -> FourBitMatrix | str:
    """Return an NVFP4 matrix, or why the kernels do not compute with it.

    `codes` are [outputs, inputs], one in each byte; `scales` are [outputs, inputs / 16] e4m3; `factor`
    multiplies all weights.
    """
    if bool(scales.float().isnan().any()):
        return "a scale is not a number"
    factors = torch.full((len(codes),), factor, dtype=torch.float32, device=codes.device)
    return FourBitMatrix(
        Code.NVFP4, packed(codes), scales.contiguous().view(torch.uint8), HALF, factors=factors
    )


def mxfp4_matrix(codes: torch.Tensor, exponents: torch.Tensor) -> FourBitMatrix | str:
    """Return an MXFP4 matrix, or why the kernels do not compute with it.

    `codes` are [outputs, inputs], one in each byte; `exponents` are [outputs, inputs / 32] uint8, plus 127.
    The matrix stores exponents relative to the largest one of an output, which becomes a factor of the
    output, because float16 has a smaller range.
    """
    if bool((exponents == 255).any()):
        return "a scale is not a number"
    # Groups of zeros may have any scale.
    empty = (codes & 7).unflatten(-1, (-1, RUN)).amax(-1) == 0
    wide = exponents.to(torch.int16).masked_fill(empty, 0)
    top = wide.amax(-1, keepdim=True)
    relative = (wide - top + E8M0_BIAS).clamp(min=0).to(torch.uint8)
    factors = torch.exp2(top[:, 0].to(torch.float32) - E8M0_BIAS)
    return FourBitMatrix(Code.MXFP4, packed(codes), relative, RUN, factors=factors)


def join(parts: Sequence[FourBitMatrix]) -> list[FourBitMatrix]:
    """Return matrices with neighbours joined by their outputs where they can be one."""
    groups: list[list[FourBitMatrix]] = []
    for part in parts:
        if groups and groups[-1][-1].joins(part):
            groups[-1].append(part)
        else:
            groups.append([part])
    return [_concatenation(group) for group in groups]


def _concatenation(parts: Sequence[FourBitMatrix]) -> FourBitMatrix:
    if len(parts) == 1:
        return parts[0]
    tensors = [part.tensors() for part in parts]
    whole: dict[str, Any] = {
        name: torch.cat([each[name] for each in tensors]) for name in tensors[0] if name != "order"
    }
    return replace(parts[0], **whole)


def stack(experts: Sequence[FourBitMatrix]) -> FourBitMatrix | None:
    """Return the matrices of experts as one; None = their codes, groups or shapes differ."""
    first, tensors = experts[0], [expert.tensors() for expert in experts]
    if any(not first.alike(expert) or first.shape != expert.shape for expert in experts):
        return None
    whole: dict[str, Any] = {name: torch.stack([each[name] for each in tensors]) for name in tensors[0]}
    return replace(first, **whole)


def fits_runs(inputs: int) -> bool:
    """Return whether a matrix with so many inputs can be held in four bits."""
    return inputs > 0 and inputs % RUN == 0
