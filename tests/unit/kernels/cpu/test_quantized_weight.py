"""Matrices of int8 and the rows that they multiply: how far off, and products that are exact for both."""

from collections.abc import Callable

import pytest
import torch

from int8_rows import as_int8
from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.packed_linear import PackedLinear
from mamba_kernels.cpu.quantized.block_numbers import BLOCK
from mamba_kernels.cpu.quantized.int8_weight import QuantizedWeight
from mamba_planner.arithmetic import INT8_BLOCK, INT8_BLOCK_BYTES
from peak_memory import peak_bytes

pytestmark = pytest.mark.matrix_unit

SHAPES = [(1, 1), (63, 1), (1, 63), (16, 100), (100, 257), (257, 100), (33, 801)]
"""(outputs, inputs)"""
KINDS = [(torch.float32, 2e-6), (torch.bfloat16, 2**-8)]


def rand(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def held(weight: torch.Tensor) -> torch.Tensor:
    """Return the float64 matrix that a quantised one stands for."""
    return QuantizedWeight(weight.float()).rows(torch.arange(len(weight))).double()


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_a_weight_is_off_by_half_a_scale_of_its_block(outputs: int, inputs: int) -> None:
    weight = rand(outputs, inputs, seed=1)
    for first in range(0, inputs, BLOCK):
        block = slice(first, first + BLOCK)
        largest = weight[:, block].abs().amax(1, keepdim=True)
        off = (held(weight)[:, block] - weight[:, block]).abs()
        # A scale is rounded to float16, which the largest weights feel.
        assert (off <= largest * (0.5 / 127 + 2**-11) + 1e-7).all()


@pytest.mark.parametrize(("dtype", "tolerance"), KINDS)
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_the_product_is_exact_for_weights_and_rows_as_int8(
    library: Library, outputs: int, inputs: int, dtype: torch.dtype, tolerance: float
) -> None:
    weight, bias = rand(outputs, inputs, seed=1, dtype=dtype), rand(outputs, seed=2, dtype=dtype)
    made = PackedLinear(library, QuantizedWeight(weight), bias)
    for rows in (1, 2, 5, 6, 9, 26, 27, 63):
        x = rand(rows, inputs + 3, seed=3, dtype=dtype)[:, 1 : inputs + 1]
        exact = as_int8(x) @ held(weight).T + bias.double()
        terms = as_int8(x).abs() @ held(weight).T.abs() + bias.double().abs()
        assert ((made(x).double() - exact).abs() <= tolerance * (terms + 1e-3)).all(), rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_alone_among_others_and_on_any_number_of_threads(
    library: Library, threads: int, dtype: torch.dtype
) -> None:
    made = PackedLinear(library, QuantizedWeight(rand(257, 800, seed=1, dtype=dtype)), None)
    x = rand(520, 800, seed=3, dtype=dtype)
    library.set_threads(1)
    alone = torch.cat([made(x[row : row + 1]) for row in range(0, 520, 13)])
    library.set_threads(threads)
    for rows in (4, 14, 40, 520):
        together = made(x[:rows])
        assert torch.equal(together[::13], alone[: len(together[::13])]), rows
    for rows in (2, 3, 7, 16, *range(24, 50)):  # lanes, and last tiles of every height that share a panel
        together = made(x[-rows:])
        each = torch.cat([made(x[row : row + 1]) for row in range(520 - rows, 520)])
        assert torch.equal(together, each), rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_too_wide_for_the_cache_have_the_same_bits(library: Library, dtype: torch.dtype) -> None:
    made = PackedLinear(library, QuantizedWeight(rand(33, 4100, seed=1, dtype=dtype)), None)
    x = rand(130, 4100, seed=3, dtype=dtype)
    assert torch.equal(made(x), torch.cat([made(x[row : row + 1]) for row in range(130)]))


def test_a_weight_that_is_no_number_shows(library: Library) -> None:
    for odd in (torch.nan, torch.inf):
        weight = rand(40, 65, seed=1)
        weight[7, 64] = odd
        out = PackedLinear(library, QuantizedWeight(weight), None)(rand(1, 65, seed=3))
        assert out.isfinite().logical_not().nonzero().tolist() == [[0, 7]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf])
def test_a_row_with_what_is_no_number_is_none_and_its_neighbours_are_what_they_were(
    library: Library, odd: float, dtype: torch.dtype
) -> None:
    made = PackedLinear(library, QuantizedWeight(rand(40, 65, seed=1, dtype=dtype)), None)
    x = rand(21, 65, seed=3, dtype=dtype)
    before = made(x)
    x[7, 41] = odd
    after = made(x)
    others = [row for row in range(21) if row != 7]
    assert not after[7].isfinite().any()
    assert torch.equal(after[others], before[others])


def test_an_outlier_takes_digits_from_its_block_alone(library: Library) -> None:
    weight, x = rand(16, 96, seed=1), rand(6, 96, seed=3)
    weight[:, 40] = 0
    lost = float((weight[:, 32:64].abs() @ x[:, 32:64].abs().T).amax())
    made = PackedLinear(library, QuantizedWeight(weight), None)
    before = made(x)
    x[:, 40] = 1e6
    assert (made(x) - before).abs().amax() <= lost
    x[:, 40] = 3.0
    assert (made(x) - before).abs().amax() < lost / 100


@pytest.mark.parametrize("size", [1e-44, 1e-37, 1e-30, 1e30])
def test_rows_of_any_size_are_multiplied_or_are_zero(library: Library, size: float) -> None:
    weight, x = rand(16, 96, seed=1), rand(6, 96, seed=3) * size
    exact = as_int8(x) @ held(weight).T
    made = PackedLinear(library, QuantizedWeight(weight), None)(x).double()
    assert ((made - exact).abs() <= 1e-5 * size * 96).all()


def test_zeros_stay_zeros(library: Library) -> None:
    made = PackedLinear(library, QuantizedWeight(torch.zeros(17, 40)), None)
    assert torch.equal(made(rand(3, 40, seed=1)), torch.zeros(3, 17))


def test_it_takes_the_bytes_that_the_planner_counts_and_little_more_while_it_is_made() -> None:
    weight, made = rand(4096, 2048, seed=1, dtype=torch.bfloat16), list[QuantizedWeight]()
    peak = peak_bytes(lambda: made.append(QuantizedWeight(weight)))
    assert INT8_BLOCK == BLOCK
    assert made[0].panels.nbytes == weight.numel() * INT8_BLOCK_BYTES // INT8_BLOCK
    assert peak < made[0].panels.nbytes + weight.nbytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_instruction_set_gives_the_same_bits(
    assert_same_bits: Callable[..., None], dtype: torch.dtype
) -> None:
    def run(library: Library) -> tuple[torch.Tensor, ...]:
        made = PackedLinear(library, QuantizedWeight(rand(257, 801, seed=1, dtype=dtype)), None)
        return tuple(made(rand(rows, 801, seed=3, dtype=dtype)) for rows in (1, 30, 100))

    assert_same_bits(run)
