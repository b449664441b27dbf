"""Rotary positions by the C++ kernels."""

from collections.abc import Callable

import pytest
import torch

from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.rope import RowRope
from mamba_kernels.rope import frequencies, rope, turns

KINDS = [(torch.float32, 1e-6), (torch.bfloat16, 2**-7)]
SIZES = [(1, 2, 1), (3, 10, 3), (2, 64, 32), (5, 80, 21)]
"""Heads, elements of one, pairs that are turned."""


def rows(heads: int, width: int, half: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Return x as a part of wider rows, and its rotations."""
    generator = torch.Generator().manual_seed(width)
    wide = torch.randn(70, heads * width + 5, generator=generator).to(dtype)
    x = wide[:, : heads * width].unflatten(1, (heads, width))
    steps = frequencies(10_000.0, 2 * half, torch.device("cpu"))
    return wide, x, *turns(torch.arange(0, 7000, 100), steps)


@pytest.mark.parametrize(("dtype", "tolerance"), KINDS)
@pytest.mark.parametrize(("heads", "width", "half"), SIZES)
def test_it_equals_the_reference_and_touches_nothing_else(
    library: Library, threads: int, dtype: torch.dtype, tolerance: float, heads: int, width: int, half: int
) -> None:
    wide, x, cos, sin = rows(heads, width, half, dtype)
    expected, row, beside = x.double().clone(), x[7:8].clone(), wide[:, heads * width :].clone()
    rope(expected, cos, sin)
    turn = RowRope(library)
    turn(x, cos, sin)
    torch.testing.assert_close(x.double(), expected, rtol=tolerance, atol=tolerance)
    assert torch.equal(x[..., 2 * half :].double(), expected[..., 2 * half :])
    assert torch.equal(wide[:, heads * width :], beside)
    turn(row, cos[7:8], sin[7:8])
    assert torch.equal(row[0], x[7])


@pytest.mark.parametrize("dtype", [kind for kind, _ in KINDS])
def test_every_instruction_set_gives_the_same_bits(
    assert_same_bits: Callable[..., None], dtype: torch.dtype
) -> None:
    def run(library: Library) -> tuple[torch.Tensor, ...]:
        _, x, cos, sin = rows(5, 80, 21, dtype)
        RowRope(library)(x, cos, sin)
        return (x,)

    assert_same_bits(run)
