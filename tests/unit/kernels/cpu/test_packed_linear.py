"""Products with packed weights: right on any shape, the same bits on any threads and beside any rows."""

import weakref
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.packed_linear import PackedLinear, PackedWeight
from peak_memory import peak_bytes

pytestmark = pytest.mark.matrix_unit

SHAPES = [(1, 1), (63, 1), (1, 63), (16, 100), (100, 257), (257, 100), (33, 801)]
"""(outputs, inputs)"""
KINDS = [(torch.float32, 2e-6), (torch.bfloat16, 2**-8)]


def rand(*shape: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def layer(library: Library, outputs: int, inputs: int, dtype: torch.dtype, bias: bool = True) -> PackedLinear:
    weight = PackedWeight(rand(outputs, inputs, seed=1, dtype=dtype))
    return PackedLinear(library, weight, rand(outputs, seed=2, dtype=dtype) if bias else None)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), KINDS)
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_the_product_is_the_exact_one_rounded(
    library: Library, outputs: int, inputs: int, dtype: torch.dtype, tolerance: float, bias: bool
) -> None:
    made = layer(library, outputs, inputs, dtype, bias)
    weight, added = rand(outputs, inputs, seed=1, dtype=dtype), rand(outputs, seed=2, dtype=dtype)
    for rows in (1, 2, 5, 6, 7, 9, 16, 17, 63, 100):
        wide = rand(rows, inputs + 3, seed=3, dtype=dtype)
        x = wide[:, 1 : inputs + 1]  # rows that lie apart, and do not begin where vectors do
        exact = x.double() @ weight.double().T + (added.double() if bias else 0)
        terms = x.double().abs() @ weight.double().abs().T + (added.double().abs() if bias else 0)
        bound = tolerance * (terms + 1e-3)
        assert ((made(x).double() - exact).abs() <= bound).all(), rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_alone_among_others_and_on_any_number_of_threads(
    library: Library, threads: int, dtype: torch.dtype
) -> None:
    made = layer(library, 257, 100, dtype)
    x = rand(520, 100, seed=3, dtype=dtype)  # more than are packed at once
    library.set_threads(1)
    alone = torch.cat([made(x[row : row + 1]) for row in range(0, 520, 13)])
    library.set_threads(threads)
    for rows in (4, 14, 40, 520):
        together = made(x[:rows])
        assert torch.equal(together[::13], alone[: len(together[::13])]), rows


@pytest.mark.parametrize(("dtype", "tolerance"), KINDS)
@pytest.mark.parametrize(
    ("name", "function"),
    [("relu", F.relu), ("relu2", lambda x: F.relu(x).square()), ("silu", F.silu), ("swish", F.silu)],
)
def test_an_activation_comes_before_the_rounding(
    library: Library, name: str, function: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype,
    tolerance: float,
) -> None:  # fmt: skip
    weight, added = rand(40, 33, seed=1, dtype=dtype), rand(40, seed=2, dtype=dtype)
    made = PackedLinear(library, PackedWeight(weight), added, name)
    x = rand(9, 33, seed=3, dtype=dtype)
    x[4, 7] = torch.nan
    expected = function(x.double() @ weight.double().T + added.double())
    got = made(x).double()
    torch.testing.assert_close(got, expected, rtol=4 * tolerance, atol=1e-4, equal_nan=True)


def test_an_embedding_reads_its_rows_from_the_packed_matrix() -> None:
    for dtype, width in ((torch.float32, 9), (torch.bfloat16, 9), (torch.bfloat16, 32)):
        matrix = rand(37, width, seed=1, dtype=dtype)
        ids = torch.tensor([0, 36, 16, 15, 0])
        assert torch.equal(PackedWeight(matrix).rows(ids), matrix[ids])


def test_nothing_is_not_a_number_but_what_came_as_one(library: Library) -> None:
    made = layer(library, 40, 33, torch.bfloat16)
    x = rand(3, 33, seed=3, dtype=torch.bfloat16)
    x[1, 32] = torch.nan
    assert made(x).isnan().all(1).tolist() == [False, True, False]


def test_packing_makes_one_copy_and_keeps_nothing_of_the_original(library: Library) -> None:
    given, made = [rand(256, 512, seed=1, dtype=torch.bfloat16)], list[PackedLinear]()
    size, original = given[0].nbytes, weakref.ref(given[0])
    peak = peak_bytes(lambda: made.append(PackedLinear(library, PackedWeight(given[0]), None)))
    given.clear()
    assert peak == size
    assert original() is None
    assert made[0](torch.ones(1, 512, dtype=torch.bfloat16)).shape == (1, 256)


def test_no_rows_make_no_rows(library: Library) -> None:
    assert layer(library, 40, 33, torch.float32)(torch.empty(0, 33)).shape == (0, 40)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("activation", ["", "silu", "relu2"])
def test_every_instruction_set_gives_the_same_bits(
    assert_products_have_same_bits: Callable[..., None], dtype: torch.dtype, activation: str
) -> None:
    # Sizes from denormal numbers to large ones: pairs are added in one order, and denormals are flushed.
    sizes = torch.exp2(torch.arange(801) * -0.3 + 100)

    def run(library: Library) -> tuple[torch.Tensor, ...]:
        made = PackedLinear(library, PackedWeight(rand(257, 801, seed=1, dtype=dtype)), None, activation)
        ragged = (rand(100, 801, seed=3, dtype=torch.float32) * sizes).to(dtype)
        return tuple(
            made(x[:rows]) for x in (ragged, rand(100, 801, seed=4, dtype=dtype)) for rows in (1, 7, 100)
        )

    assert_products_have_same_bits(run)
