"""Triton's activations at awkward widths, in place, and nothing beside their rows is touched."""

import pytest
import torch
import torch.nn.functional as F

from covering import every
from kernel_variants import variants
from mamba_kernels.activate import Function
from mamba_kernels.activate.triton import activate
from matrix_size import LARGE
from testmodels.functions import FORMULAS
from triton_close import close

# Of the interpreter: an exponential may be infinite, and its inverse 0.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")


def product(width: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the rows of a gate and an up projection, surrounded by NaN."""
    generator = torch.Generator().manual_seed(width)
    whole = torch.full((5, 2 * width + 6), float("nan"), dtype=dtype)
    whole[1:-1, 3:-3] = 3 * torch.randn(3, 2 * width, generator=generator).to(dtype)
    return whole


WIDTHS = (
    (1, torch.float32), (63, torch.bfloat16), (100, torch.float16), (257, torch.float32),
    (2000, torch.bfloat16),
)  # fmt: skip
ROWS = [*enumerate(every(Function, (False, True)))]


@pytest.mark.parametrize(
    ("width", "dtype", "function", "multiplied"),
    [(*size, *row) for n, row in ROWS for size in (WIDTHS if LARGE else (WIDTHS[n % 5], WIDTHS[-1 - n % 5]))],
)
def test_rows_become_the_formula_times_the_factor(
    width: int, dtype: torch.dtype, function: Function, multiplied: bool
) -> None:
    whole = product(width, dtype)
    before, rows = whole.clone(), slice(1, -1)
    gate, up = whole[rows, 3 : 3 + width], whole[rows, 3 + width : -3]
    expected = FORMULAS[function](gate.double())
    if multiplied:
        expected *= up.double()
    activate(gate, function, up if multiplied else None)
    close(gate, expected)
    gate.copy_(before[rows, 3 : 3 + width])
    torch.testing.assert_close(whole, before, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("function", Function)
def test_large_numbers_overflow_nothing_and_what_is_no_number_stays_none(function: Function) -> None:
    x = torch.tensor([[200.0, -200.0, 0.0, -0.0, 1e-30, float("nan")]])
    activate(x, function)
    torch.testing.assert_close(
        x.double(), FORMULAS[function](torch.tensor([[200.0, -200, 0, 0, 1e-30, float("nan")]]).double()),
        equal_nan=True, rtol=1e-6, atol=1e-12,
    )  # fmt: skip


def test_what_is_compiled_does_not_follow_from_the_number_of_rows() -> None:
    both = torch.randn(64, 8)
    with variants() as seen:
        for n in (1, 2, 5, 33):
            gate, up = F.linear(torch.randn(n, 8), both).chunk(2, 1)
            activate(gate, Function.SILU, up)
    assert len(seen) == 1


def test_no_rows_are_no_launch() -> None:
    activate(torch.empty(0, 8), Function.SILU, torch.empty(0, 8))
