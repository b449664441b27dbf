"""Matrices of four bits: how far off they are, and products that are exact for them and for rows as int8."""

from collections.abc import Callable

import pytest
import torch

from int8_rows import as_int8
from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.packed_linear import PackedLinear
from mamba_kernels.cpu.quantized.block_numbers import BLOCK
from mamba_kernels.cpu.quantized.int4_weight import Int4Weight
from peak_memory import peak_bytes

pytestmark = pytest.mark.matrix_unit

SHAPES = [(1, 1), (63, 1), (1, 63), (100, 257), (257, 100), (33, 801)]
"""(outputs, inputs)"""
KINDS = [(torch.float32, 2e-6), (torch.bfloat16, 2**-8)]


def rand(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def held(weight: torch.Tensor) -> torch.Tensor:
    """Return the float64 matrix that a quantized one stands for."""
    return Int4Weight(weight.float()).rows(torch.arange(len(weight))).double()


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_a_weight_is_one_of_sixteen_multiples_of_the_scale_of_its_block(outputs: int, inputs: int) -> None:
    matrix = held(rand(outputs, inputs, seed=1))
    packed = Int4Weight(rand(outputs, inputs, seed=1))
    scales = packed.panels[..., :32].view(torch.float16)  # [panels, blocks, 16]
    for first in range(0, inputs, BLOCK):
        scale = scales[:, first // BLOCK].flatten()[:outputs].double()
        numbers = matrix[:, first : first + BLOCK] / scale.unsqueeze(1)
        assert torch.equal(numbers, numbers.round())
        assert numbers.min() >= -8
        assert numbers.max() <= 7


def test_weights_are_nearer_than_with_the_largest_as_the_end_of_the_scale() -> None:
    weight = rand(256, 1024, seed=1)
    off = (held(weight) - weight).square().mean().sqrt() / weight.square().mean().sqrt()
    blocks = weight.unflatten(1, (-1, BLOCK))
    end = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True)) / -8
    plain = (blocks / end).round().clamp(-8, 7) * end
    off_plain = (plain - blocks).square().mean().sqrt() / weight.square().mean().sqrt()
    assert off < off_plain * 0.99
    assert off < 0.09


@pytest.mark.parametrize(("dtype", "tolerance"), KINDS)
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_the_product_is_exact_for_weights_of_four_bits_and_rows_as_int8(
    library: Library, outputs: int, inputs: int, dtype: torch.dtype, tolerance: float
) -> None:
    weight, bias = rand(outputs, inputs, seed=1, dtype=dtype), rand(outputs, seed=2, dtype=dtype)
    product = PackedLinear(library, Int4Weight(weight), bias)
    for rows in (1, 2, 5, 6, 9, 26, 27):
        x = rand(rows, inputs + 3, seed=3, dtype=dtype)[:, 1 : inputs + 1]
        exact = as_int8(x) @ held(weight).T + bias.double()
        terms = as_int8(x).abs() @ held(weight).T.abs() + bias.double().abs()
        assert ((product(x).double() - exact).abs() <= tolerance * (terms + 1e-3)).all(), rows


def test_sums_of_the_largest_products_do_not_overflow(library: Library) -> None:
    weight = torch.full((40, 64), -8.0)
    weight[::2, :32], weight[1::2, 32:] = 7.0, 7.0
    weight[:, ::32] = -8.0
    for sign in (1.0, -1.0):
        x = torch.full((7, 64), sign * 127)
        assert torch.equal(
            PackedLinear(library, Int4Weight(weight), None)(x).double(), x.double() @ held(weight).T
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_alone_among_others_and_on_any_number_of_threads(
    library: Library, threads: int, dtype: torch.dtype
) -> None:
    product = PackedLinear(library, Int4Weight(rand(257, 800, seed=1, dtype=dtype)), None)
    x = rand(520, 800, seed=3, dtype=dtype)
    library.set_threads(1)
    alone = torch.cat([product(x[row : row + 1]) for row in range(0, 520, 13)])
    library.set_threads(threads)
    for rows in (4, 14, 40, 520):
        together = product(x[:rows])
        assert torch.equal(together[::13], alone[: len(together[::13])]), rows


def test_a_weight_that_is_no_number_shows(library: Library) -> None:
    for odd in (torch.nan, torch.inf, -torch.inf):
        weight = rand(40, 65, seed=1)
        weight[7, 64] = odd
        weight[9, 3] = odd
        out = PackedLinear(library, Int4Weight(weight), None)(rand(1, 65, seed=3))
        assert out.isfinite().logical_not().nonzero().tolist() == [[0, 7], [0, 9]]


def test_zeros_stay_zeros(library: Library) -> None:
    product = PackedLinear(library, Int4Weight(torch.zeros(17, 40)), None)
    assert torch.equal(product(rand(3, 40, seed=1)), torch.zeros(3, 17))


def test_packing_takes_little_more_memory_than_the_matrix() -> None:
    weight, packed = rand(4096, 2048, seed=1, dtype=torch.bfloat16), list[Int4Weight]()
    peak = peak_bytes(lambda: packed.append(Int4Weight(weight)))
    assert packed[0].panels.nbytes == weight.numel() * 18 // 32
    assert peak < packed[0].panels.nbytes + 2 * weight.nbytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_instruction_set_gives_the_same_bits(
    assert_same_bits: Callable[..., None], dtype: torch.dtype
) -> None:
    def run(library: Library) -> tuple[torch.Tensor, ...]:
        product = PackedLinear(library, Int4Weight(rand(257, 801, seed=1, dtype=dtype)), None)
        return tuple(product(rand(rows, 801, seed=3, dtype=dtype)) for rows in (1, 30, 100))

    assert_same_bits(run)
