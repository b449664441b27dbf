"""Random matrices of four bits, written by the definition of each code, with the weights they stand for."""

import torch

from mamba_kernels.four_bit.matrix import Code, FourBitMatrix
from testmodels.quantized import E2M1

KINDS: tuple[tuple[Code, int], ...] = (
    (Code.INTEGER, 32),
    (Code.INTEGER, 128),
    (Code.INTEGER_ZEROS, 64),
    (Code.NVFP4, 16),
    (Code.MXFP4, 32),
)
"""Codes with the inputs of a group."""


def random_matrix(
    code: Code, *outer: int, inputs: int, group: int, ordered: bool = False, seed: int = 0
) -> tuple[FourBitMatrix, torch.Tensor]:
    """Return a matrix [*outer, inputs], and its weights in float64."""
    g = torch.Generator().manual_seed(seed)
    groups = -(-inputs // group)
    codes = torch.randint(0, 16, (*outer, inputs), generator=g)
    places = torch.arange(inputs)
    packed = torch.zeros(*outer, inputs // 2, dtype=torch.uint8)
    for k in range(inputs):
        packed[..., 16 * (k // 32) + k % 16] |= (codes[..., k] << (4 if k % 32 >= 16 else 0)).to(torch.uint8)
    zeros = factors = None
    spread = places // group
    if code.startswith("integer"):
        scales = (torch.rand(*outer, groups, generator=g) / inputs**0.5).half()
        zero = torch.full((*outer, groups), 8)
        if code is Code.INTEGER_ZEROS:
            zero = torch.randint(0, 17, (*outer, groups), generator=g)
            zeros = zero.to(torch.uint8)
        weights = (codes - zero[..., spread]).double() * scales.double()[..., spread]
    else:
        factors = torch.rand(outer, generator=g) / inputs**0.5
        values = torch.where(codes > 7, -1.0, 1.0).double() * E2M1[codes & 7]
        if code is Code.NVFP4:
            exact = torch.rand(*outer, groups, generator=g).to(torch.float8_e4m3fn)
            exact.view(-1)[0] = 2.0**-9
            scales, multiples = exact.view(torch.uint8), exact.double()
        else:
            scales = torch.randint(118, 128, (*outer, groups), generator=g).to(torch.uint8)
            multiples = torch.exp2(scales.double() - 127)
        weights = values * multiples[..., spread] * factors.double().unsqueeze(-1)
    order = None
    if ordered:
        order = torch.rand(*outer[:-1], inputs, generator=g).argsort(-1)
        placed = order.unsqueeze(-2).expand_as(weights)
        weights = torch.empty_like(weights).scatter_(-1, placed, weights)
        order = order.to(torch.int32)
    return FourBitMatrix(code, packed, scales, group, zeros, factors, order), weights
