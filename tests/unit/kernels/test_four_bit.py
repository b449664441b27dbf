"""Matrices of four bits are the weights that their codes stand for, however they are cut and joined."""

import pytest
import torch

from mamba_kernels.four_bit import FourBitMatrix, four_bit_product
from mamba_kernels.four_bit.matrix import Code, join, mxfp4_matrix, nvfp4_matrix, stack
from testmodels.four_bits import KINDS, random_matrix


@pytest.mark.parametrize(("code", "group"), KINDS)
def test_rows_experts_and_factors_keep_the_weights(code: Code, group: int) -> None:
    matrix, weights = random_matrix(code, 6, inputs=128, group=group, ordered=True)
    assert torch.equal(matrix.plain(torch.float64), weights)
    rows = torch.tensor([4, 0, 1])
    assert torch.equal(matrix.select(rows).plain(torch.float64), weights[rows])
    factors = torch.tensor([1.0, 2, 0.5, 4, 1, 8])
    assert torch.equal(matrix.scaled(factors).plain(torch.float64), weights * factors[:, None])
    (whole,) = join([matrix.select(slice(0, 2)), matrix.select(slice(2, 6))])
    assert torch.equal(whole.plain(torch.float64), weights)
    experts = stack(
        [matrix, matrix.scaled(factors).scaled(1 / factors) if matrix.factors is not None else matrix]
    )
    assert experts is not None
    assert torch.equal(experts.expert(torch.tensor([1])).plain(torch.float64), weights)


def test_matrices_of_different_kinds_are_not_joined() -> None:
    one, _ = random_matrix(Code.INTEGER, 4, inputs=64, group=32)
    for code, group, ordered in (
        (Code.INTEGER_ZEROS, 32, False),
        (Code.INTEGER, 64, False),
        (Code.INTEGER, 32, True),
    ):
        other, _ = random_matrix(code, 4, inputs=64, group=group, ordered=ordered)
        assert len(join([one, other])) == 2
        assert stack([one, other]) is None


def test_a_row_has_the_same_bits_alone_where_that_is_asked_for() -> None:
    matrix, weights = random_matrix(Code.MXFP4, 33, inputs=160, group=32)
    x = torch.randn(9, 160, generator=torch.Generator().manual_seed(1))
    many, alone = torch.empty(9, 33), torch.empty(1, 33)
    four_bit_product(x, matrix, None, many, True)
    four_bit_product(x[8:], matrix, None, alone, True)
    assert torch.equal(many[8:], alone)
    assert torch.allclose(many.double(), x.double() @ weights.T, rtol=1e-5, atol=1e-5)


def test_fitted_weights_are_nearer_than_a_third_of_a_step() -> None:
    weight = torch.randn(5, 96, generator=torch.Generator().manual_seed(2)) / 8
    matrix = FourBitMatrix.fit(weight)
    far = (matrix.plain(torch.float32) - weight).abs().unflatten(1, (-1, 32)).amax(-1)
    assert (far <= matrix.scales.float().abs() * 1.01).all()
    assert (
        matrix.plain(torch.float32) - weight
    ).square().mean().sqrt() < matrix.scales.float().abs().mean() / 3


def test_powers_of_two_far_apart_and_groups_of_zeros_are_kept() -> None:
    codes = torch.randint(1, 8, (2, 96), generator=torch.Generator().manual_seed(3)).byte()
    codes[1, 32:64] = 0
    matrix = mxfp4_matrix(codes, torch.tensor([[127, 110, 140], [3, 255 - 1, 2]], dtype=torch.uint8))
    assert isinstance(matrix, FourBitMatrix)
    values = torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)[codes.long()]
    powers = torch.exp2(torch.tensor([[0.0, -17, 13], [-124, 0, -125]], dtype=torch.float64))
    assert torch.equal(matrix.plain(torch.float64), values * powers.repeat_interleave(32, 1))


def test_scales_that_are_no_numbers_are_left_to_ordinary_weights() -> None:
    codes = torch.zeros(1, 32, dtype=torch.uint8)
    assert mxfp4_matrix(codes, torch.tensor([[255]], dtype=torch.uint8)) == "a scale is not a number"
    scales = torch.tensor([[1.0, float("nan")]]).to(torch.float8_e4m3fn)
    assert nvfp4_matrix(codes, scales, 1.0) == "a scale is not a number"
