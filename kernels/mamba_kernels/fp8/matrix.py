"""`Fp8Matrix` and `Fp8Rows`: FP8 numbers (e4m3) with float32 scales, of weights and of a step's rows.

The engine makes a matrix of ordinary weights, or takes one as a checkpoint stores it; the operators of this
folder multiply. A scale belongs to all inputs of an output, or to a group of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mamba_kernels.precision import accumulator

KIND = torch.float8_e4m3fn
"""Type of the numbers."""
LARGEST = 448.0
"""Largest number of the type `KIND`. Larger ones are rounded to it."""
GROUP = 128
"""Inputs of a group in checkpoints whose blocks have scales."""


@dataclass(frozen=True, slots=True)
class Fp8Rows:
    """Rows of a step as FP8 numbers with scales; a value is number * scale."""

    numbers: torch.Tensor
    """Numbers of the rows, [T, inputs] FP8."""
    scales: torch.Tensor
    """[T, groups] float32; one group = a scale for the whole row, otherwise one for `GROUP` inputs."""


@dataclass(frozen=True, slots=True)
class Fp8Matrix:
    """A matrix, or one of each expert, as FP8 numbers with scales; a weight is number * scale."""

    numbers: torch.Tensor
    """Numbers of the weights, [..., outputs, inputs] FP8."""
    scales: torch.Tensor
    """Scales of the weights, [..., outputs, groups] float32; groups are as in `Fp8Rows`."""

    @classmethod
    def of(cls, weight: torch.Tensor) -> "Fp8Matrix":
        """Round weights [..., outputs, inputs] to FP8 with a scale for each output."""
        numbers = torch.empty(weight.shape, dtype=KIND, device=weight.device)
        scales = torch.empty(*weight.shape[:-1], 1, dtype=torch.float32, device=weight.device)
        matrices = weight.flatten(0, -3) if weight.dim() > 2 else weight.unsqueeze(0)
        places = zip(numbers.view(matrices.shape), scales.view(*matrices.shape[:2], 1), strict=True)
        # As float32, one matrix takes four times its memory, and all of a layer's experts far more.
        for matrix, (own_numbers, own_scales) in zip(matrices, places, strict=True):
            rounded = quantized(matrix, 1)
            own_numbers.view(torch.uint8).copy_(rounded.numbers.view(torch.uint8))
            own_scales.copy_(rounded.scales)
        return cls(numbers, scales)

    @property
    def shape(self) -> torch.Size:
        """Dimensions of the matrix."""
        return self.numbers.shape

    @property
    def groups(self) -> int:
        """Number of scales of an output."""
        return self.scales.shape[-1]

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.numbers.nbytes + self.scales.nbytes

    def select(self, rows: torch.Tensor | slice) -> "Fp8Matrix":
        """Return a matrix that has only the rows `rows`."""
        # Torch indexes bytes on every device, and FP8 on some.
        numbers = self.numbers.view(torch.uint8)[rows].view(KIND)
        return Fp8Matrix(numbers, self.scales[rows])

    def expert(self, index: torch.Tensor) -> "Fp8Matrix":
        """Return the matrix of one expert; `index`: [1] integer on the device."""
        numbers = self.numbers.view(torch.uint8).index_select(0, index)[0].view(KIND)
        return Fp8Matrix(numbers, self.scales.index_select(0, index)[0])

    def scaled(self, factor: torch.Tensor) -> "Fp8Matrix":
        """Return the matrix with each output multiplied by its factor: [outputs], or [] for all."""
        factors = factor.to(self.scales).reshape(-1, 1) if factor.dim() else factor.to(self.scales)
        return Fp8Matrix(self.numbers, self.scales * factors)

    def plain(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the weights, rounded to `dtype`."""
        wide = self.numbers.to(accumulator(dtype))
        return wide.mul_(of_inputs(self.scales, wide.shape[-1])).to(dtype)


def joined(parts: Sequence[Fp8Matrix]) -> Fp8Matrix:
    """Join the outputs of matrices, whose outputs must have equally many scales."""
    if len(parts) == 1:
        return parts[0]
    numbers = torch.cat([part.numbers.view(torch.uint8) for part in parts]).view(KIND)
    return Fp8Matrix(numbers, torch.cat([part.scales for part in parts]))


def stacked(matrices: Sequence[Fp8Matrix]) -> Fp8Matrix:
    """Return the matrices of all experts as one, [E, outputs, inputs]."""
    numbers = torch.stack([each.numbers.view(torch.uint8) for each in matrices]).view(KIND)
    return Fp8Matrix(numbers, torch.stack([each.scales for each in matrices]))


def of_inputs(scales: torch.Tensor, inputs: int) -> torch.Tensor:
    """Repeat scales of groups, [..., groups], for each input: [..., inputs], or [..., 1] for one group."""
    return scales if scales.shape[-1] == 1 else scales.repeat_interleave(GROUP, -1)[..., :inputs]


def quantized(x: torch.Tensor, groups: int) -> Fp8Rows:
    """Round rows [T, inputs] to FP8, with scales [T, groups] that make the largest number of a group 448."""
    wide = x.to(torch.float32)
    if groups == 1:
        scales = wide.abs().amax(-1, keepdim=True) / LARGEST
    else:
        padded = torch.nn.functional.pad(wide, (0, groups * GROUP - wide.shape[-1]))
        scales = padded.unflatten(-1, (groups, GROUP)).abs().amax(-1) / LARGEST
    divisors = of_inputs(torch.where(scales > 0, scales, 1.0), wide.shape[-1])
    return Fp8Rows((wide / divisors).clamp_(-LARGEST, LARGEST).to(KIND), scales)
