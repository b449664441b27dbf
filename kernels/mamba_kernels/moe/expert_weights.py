"""`ExpertWeights`: one matrix of each expert, in one of the forms by which `moe` multiplies.

The engine's layer of experts joins and stacks what its checkpoint stores, and `moe` takes the result. A form
carries its own scales, so the matrices of one call may have different forms.
"""

from collections.abc import Sequence

import torch

from mamba_kernels.four_bit import matrix as four_bit
from mamba_kernels.four_bit.matrix import FourBitMatrix
from mamba_kernels.fp8 import matrix as fp8
from mamba_kernels.fp8.matrix import Fp8Matrix

ExpertWeights = torch.Tensor | FourBitMatrix | Fp8Matrix
"""Matrices [E, outputs, inputs], or one [outputs, inputs], of ordinary weights, of four bits or in FP8."""


def of_one(weights: ExpertWeights) -> ExpertWeights:
    """Return the matrix of one expert with a leading dimension of one, as the matrices of many have it."""
    if isinstance(weights, torch.Tensor):
        return weights.unsqueeze(0)
    if isinstance(weights, Fp8Matrix):
        return Fp8Matrix(weights.numbers.unsqueeze(0), weights.scales.unsqueeze(0))
    return weights.mapped(lambda tensor: tensor.unsqueeze(0))


def of_expert(weights: ExpertWeights, expert: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the ordinary weights [outputs, inputs] of one expert; `expert`: [1] integer on the device."""
    if isinstance(weights, torch.Tensor):
        return weights.index_select(0, expert)[0].to(dtype)
    return weights.expert(expert).plain(dtype)


def joined(parts: Sequence[ExpertWeights]) -> FourBitMatrix | Fp8Matrix | None:
    """Return matrices of one expert whose outputs follow one another as one; None = their forms differ.

    It is None for ordinary weights, too, which the caller joins.
    """
    codes = [part for part in parts if isinstance(part, FourBitMatrix)]
    if len(codes) == len(parts):
        whole = four_bit.join(codes)
        return whole[0] if len(whole) == 1 else None
    numbers = [part for part in parts if isinstance(part, Fp8Matrix)]
    if len(numbers) == len(parts) and len({part.groups for part in numbers}) == 1:
        return fp8.joined(numbers)
    return None


def stacked(experts: Sequence[ExpertWeights]) -> FourBitMatrix | Fp8Matrix | None:
    """Return the matrices of all experts as one; None = their forms differ, or their weights are ordinary."""
    codes = [expert for expert in experts if isinstance(expert, FourBitMatrix)]
    if len(codes) == len(experts):
        return four_bit.stack(codes)
    numbers = [expert for expert in experts if isinstance(expert, Fp8Matrix)]
    if len(numbers) == len(experts) and len({expert.groups for expert in numbers}) == 1:
        return fp8.stacked(numbers)
    return None
