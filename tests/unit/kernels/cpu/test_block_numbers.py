"""Matrices that were quantized before they were loaded keep each number, and so do their products."""

from collections.abc import Callable

import pytest
import torch

from int8_rows import as_int8
from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.packed_linear import JoinedMatrix, PackedLinear, PackedWeight
from mamba_kernels.cpu.quantized.block_numbers import BlockNumbers, join_numbers
from mamba_kernels.cpu.quantized.int4_weight import pack_numbers

pytestmark = pytest.mark.matrix_unit

FORMS = ["int8", "int4", "zeros"]
SHAPES = [(33, 96, 32), (17, 200, 64)]
"""(outputs, inputs, group)"""


def stored(
    form: str,
    outputs: int,
    inputs: int,
    group: int,
    *,
    seed: int = 1,
    ordered: bool = False,
    dtype: torch.dtype = torch.float32,
) -> BlockNumbers:
    """Draw numbers of a form, all of its values among them."""
    g = torch.Generator().manual_seed(seed)
    groups = -(-inputs // group)
    low, high = {"int8": (-128, 127), "int4": (-8, 7), "zeros": (0, 15)}[form]
    return BlockNumbers(
        torch.randint(low, high + 1, (outputs, inputs), generator=g).to(
            torch.uint8 if form == "zeros" else torch.int8
        ),
        (torch.rand(outputs, groups, generator=g) / 20 + 0.001).half(),
        group,
        8 if form == "int8" else 4,
        dtype,
        torch.randint(0, 17, (outputs, groups), generator=g).byte() if form == "zeros" else None,
        torch.randperm(inputs, generator=g).int() if ordered else None,
    )


def rand(*shape: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def seen(numbers: BlockNumbers, x: torch.Tensor) -> torch.Tensor:
    """Return rows as the product reads them: int8 by blocks of inputs in the order of the matrix, float64."""
    if numbers.order is None:
        return as_int8(x)
    places = numbers.order.long()
    return torch.empty(x.shape, dtype=torch.float64).index_copy_(1, places, as_int8(x[:, places]))


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("form", FORMS)
def test_the_product_is_exact_for_the_numbers_of_the_checkpoint(
    library: Library, form: str, shape: tuple[int, int, int], ordered: bool
) -> None:
    for dtype, tolerance in ((torch.float32, 2e-6), (torch.bfloat16, 2**-8)):
        numbers = stored(form, *shape, ordered=ordered, dtype=dtype)
        matrix, bias = numbers.plain(torch.float64), rand(shape[0], seed=2, dtype=dtype)
        packed = pack_numbers(numbers)
        assert torch.equal(packed.rows(torch.arange(shape[0])), matrix.to(dtype))
        product = PackedLinear(library, packed, bias)
        for rows in (1, 5, 17):
            x = rand(rows, shape[1], seed=3, dtype=dtype)
            exact = seen(numbers, x) @ matrix.T + bias.double()
            terms = seen(numbers, x).abs() @ matrix.T.abs() + bias.double().abs()
            assert ((product(x).double() - exact).abs() <= tolerance * (terms + 1e-3)).all(), rows


def test_matrices_of_several_forms_are_one_product(library: Library) -> None:
    whole = rand(9, 96, seed=4, dtype=torch.bfloat16)
    kinds = [stored(form, 20, 96, 32, dtype=torch.bfloat16) for form in FORMS]
    parts = [pack_numbers(kinds[0]), PackedWeight(whole), *map(pack_numbers, kinds[1:])]
    bias = rand(69, seed=2, dtype=torch.bfloat16)
    together = PackedLinear(library, JoinedMatrix(parts), bias, "silu")
    for rows in (1, 3, 20):
        x = rand(rows, 96, seed=3, dtype=torch.bfloat16)
        first, each = 0, []
        for part in parts:
            each.append(PackedLinear(library, part, bias[first : first + part.outputs].clone(), "silu")(x))
            first += part.outputs
        assert torch.equal(together(x), torch.cat(each, 1)), rows


def test_rows_are_joined_and_selected_without_a_change() -> None:
    first, second = (stored("zeros", 8, 64, 32, seed=seed, ordered=True) for seed in (1, 1))
    (joined,) = join_numbers([first, second])
    assert torch.equal(joined.plain(torch.float32)[8:], second.plain(torch.float32))
    assert torch.equal(first.select(slice(2, 5)).plain(torch.float32), first.plain(torch.float32)[2:5])
    others = [
        stored("int4", 8, 64, 32),
        stored("zeros", 8, 64, 64),
        stored("zeros", 8, 64, 32, seed=2, ordered=True),
    ]
    assert len(join_numbers([first, *others])) == 4


def test_every_instruction_set_gives_the_same_bits(assert_same_bits: Callable[..., None]) -> None:
    numbers = stored("zeros", 70, 161, 64, ordered=True)

    def run(library: Library) -> tuple[torch.Tensor, ...]:
        product = PackedLinear(library, pack_numbers(numbers), None)
        return tuple(product(rand(rows, 161, seed=3, dtype=torch.float32)) for rows in (1, 7, 40))

    assert_same_bits(run)
