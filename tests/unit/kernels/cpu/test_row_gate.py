"""A gate on rows: right, rounded once, the same bits alone and with every instruction set."""

from collections.abc import Callable

import pytest
import torch

from mamba_kernels.arguments import WrongArgument
from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.row_operations import RowGate

SHAPES = [(1, 1), (3, 63), (70, 257), (2, 20_000)]


def rows(shape: tuple[int, int], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows, and gates that lie in wider rows."""
    generator = torch.Generator().manual_seed(3)
    wide = torch.randn(2, shape[0], shape[1] + 5, generator=generator) * 6
    return wide[0, :, 5:].to(dtype).contiguous(), wide[1].to(dtype)[:, 3:-2]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2**-8)])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_multiplied_by_the_sigmoid_of_their_gate(
    library: Library, threads: int, shape: tuple[int, int], dtype: torch.dtype, tolerance: float
) -> None:
    x, gate = rows(shape, dtype)
    library.set_threads(threads)
    alone = x[-1:].clone()
    RowGate(library)(alone, gate[-1:])
    expected = x.double() * gate.double().sigmoid()
    RowGate(library)(x, gate)
    torch.testing.assert_close(x.double(), expected, rtol=tolerance, atol=1e-12)
    assert torch.equal(x[-1:], alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_instruction_set_gives_the_same_bits(
    assert_same_bits: Callable[..., None], dtype: torch.dtype
) -> None:
    def run(library: Library) -> tuple[torch.Tensor, ...]:
        x, gate = rows((7, 257), dtype)
        RowGate(library)(x, gate)
        return (x,)

    assert_same_bits(run)


def test_what_does_not_fit_is_named(library: Library) -> None:
    x, gate = rows((3, 5), torch.float32)
    for name, given in {
        "x": (x.double(), gate), "gate": (x, gate[:2])
    }.items():  # fmt: skip
        with pytest.raises(WrongArgument, match=rf"^{name} "):
            RowGate(library)(*given)
    with pytest.raises(WrongArgument, match=r"^gate "):
        RowGate(library)(x, gate.bfloat16())
