"""Changes of rows by adapters: right, alone as among others, the same bits with every instruction set."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from mamba_kernels.arguments import WrongArgument
from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.packed_linear import PackedLinear, PackedMatrix, PackedWeight
from mamba_kernels.cpu.quantized.int4_weight import Int4Weight
from mamba_kernels.cpu.quantized.int8_weight import QuantizedWeight
from mamba_kernels.cpu.row_operations import AdapterRows

INPUTS, RANK = 77, 7
WIDTHS = (33, 1, 50)
PLACES = np.array([2, -1, 0, 2, 1], np.int32)


class Product:
    """A product of random weights with three parts and three places, of which place 1 is empty."""

    def __init__(
        self,
        library: Library,
        dtype: torch.dtype,
        pack: Callable[[torch.Tensor], PackedMatrix] = PackedWeight,
    ) -> None:
        generator = torch.Generator().manual_seed(5)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator).to(dtype)

        packed = pack(random(sum(WIDTHS), INPUTS) / 8)
        self.first = random(3, len(WIDTHS), RANK, INPUTS) / 8
        self.seconds = [random(3, RANK, width) / 4 for width in WIDTHS]
        self.x = random(len(PLACES), INPUTS + 3)[:, 1:-2]
        self.plain = PackedLinear(library, packed, None)
        starts = [0, *np.cumsum(WIDTHS)[:-1].tolist()]
        self.rows = AdapterRows(library, self.plain, self.plain, self.first, self.seconds, starts)
        self.rows.ranks[:] = [RANK - 2, 0, RANK]

    def changed(self, first: int, end: int) -> torch.Tensor:
        out = self.plain(self.x[first:end])
        self.rows(self.x[first:end], PLACES[first:end], out)
        return out

    def expected(self) -> torch.Tensor:
        out = self.plain(self.x).double()
        for row, place in enumerate(PLACES.tolist()):
            rank = int(self.rows.ranks[place]) if place >= 0 else 0
            for part, (second, columns) in enumerate(
                zip(self.seconds, out[row].split(list(WIDTHS)), strict=True)
            ):
                inner = self.first[place, part, :rank].double() @ self.x[row].double()
                columns += inner @ second[place, :rank].double()
        return out


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2**-6)])
def test_each_row_is_changed_by_its_own_adapter(
    library: Library, threads: int, dtype: torch.dtype, tolerance: float
) -> None:
    library.set_threads(threads)
    product = Product(library, dtype)
    out = product.changed(0, len(PLACES))
    torch.testing.assert_close(out.double(), product.expected(), rtol=tolerance, atol=tolerance)
    assert torch.equal(out[1:2], product.plain(product.x[1:2])), "a row without an adapter keeps its bits"
    for row in range(len(PLACES)):
        assert torch.equal(out[row : row + 1], product.changed(row, row + 1))


@pytest.mark.parametrize("pack", [QuantizedWeight, Int4Weight])
def test_a_quantised_base_is_changed_like_another(
    library: Library, pack: Callable[[torch.Tensor], PackedMatrix]
) -> None:
    product = Product(library, torch.bfloat16, pack)
    out = product.changed(0, len(PLACES))
    torch.testing.assert_close(out.double(), product.expected(), rtol=2**-6, atol=2**-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_instruction_set_gives_the_same_bits(
    assert_same_bits: Callable[..., None], dtype: torch.dtype
) -> None:
    assert_same_bits(lambda library: (Product(library, dtype).changed(0, len(PLACES)),))


def test_what_does_not_fit_is_named(library: Library) -> None:
    product = Product(library, torch.float32)
    out = product.plain(product.x)
    for name, given in {
        "x": (product.x[:, :-1], PLACES, out),
        "out": (product.x, PLACES, out[:, :-1]),
        "places": (product.x, PLACES + 1, out),
    }.items():
        with pytest.raises(WrongArgument, match=rf"^{name} "):
            product.rows(*given)
