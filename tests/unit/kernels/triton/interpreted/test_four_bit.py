"""Triton's product with four bits equals float64 sums over the weights that the codes stand for."""

from dataclasses import replace

import pytest
import torch

from kernel_variants import variants
from mamba_kernels.four_bit import triton as four_bit
from mamba_kernels.four_bit.matrix import Code, FourBitMatrix
from mamba_kernels.four_bit.triton import four_bit_product, row_counts_of_tiles
from mamba_kernels.moe import Activation, reference
from mamba_kernels.moe.triton import moe
from matrix_size import LARGE
from testmodels.experts import ExpertBatch
from testmodels.four_bits import KINDS, random_matrix
from triton_close import close


def surrounded(rows: int, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return poisoned memory, and rows in the middle of it."""
    whole = torch.full((rows + 2, width + 6), float("nan"), dtype=dtype)
    return whole, whole[1:-1, 3:-3]


@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(1, 40, 1056), (20, 70, 96)])
@pytest.mark.parametrize(("code", "group"), KINDS)
def test_a_product_is_the_sum_over_the_weights_that_the_codes_stand_for(
    code: Code, group: int, rows: int, outputs: int, inputs: int
) -> None:
    """Inputs are split among programs in the first size, and no tile is whole in the other."""
    dtype = (torch.float32, torch.bfloat16, torch.float16)[(group + rows) % 3 if LARGE else group % 3]
    matrix, weights = random_matrix(code, outputs, inputs=inputs, group=group, ordered=rows == 20)
    g = torch.Generator().manual_seed(rows)
    _, x = surrounded(rows, inputs, dtype)
    x.copy_(torch.randn(rows, inputs, generator=g))
    bias = torch.randn(outputs, generator=g).to(dtype)
    whole, out = surrounded(rows, outputs, dtype)
    four_bit_product(x, matrix, bias, out)
    close(out, x.double() @ weights.T + bias.double(), sums=2)
    out.fill_(float("nan"))
    assert whole.isnan().all()


def test_a_row_has_the_same_bits_alone_as_among_others_if_that_is_asked_for() -> None:
    matrix, _ = random_matrix(Code.INTEGER, 33, inputs=1056, group=32)
    x = torch.randn(18, 1056, generator=torch.Generator().manual_seed(1))
    many, alone = torch.empty(18, 33), torch.empty(1, 33)
    four_bit_product(x, matrix, None, many, True)
    four_bit_product(x[17:], matrix, None, alone, True)
    assert torch.equal(many[17:], alone)


def test_the_forms_that_are_prepared_are_all_that_numbers_of_rows_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(four_bit, "TILE_ROWS", ((1, 16), (17, 32), (40, 64)))
    matrix, _ = random_matrix(Code.MXFP4, 20, inputs=64, group=32)

    def seen(counts: list[int]) -> set[object]:
        with variants() as launched:
            for n in counts:
                four_bit_product(torch.randn(n, 64), matrix, None, torch.empty(n, 20))
        return set(launched)

    assert seen(row_counts_of_tiles(100)) == seen([1, 2, 16, 17, 33, 40, 64, 65])


EXPERTS = [
    ((Code.INTEGER_ZEROS, 64), (Code.INTEGER, 32), Activation.GATED_SILU, True),
    ((Code.NVFP4, 16), (Code.MXFP4, 32), Activation.SQUARED_RELU, False),
    ((Code.MXFP4, 32), None, Activation.GATED_SILU, False),
]


@pytest.mark.parametrize(("up", "down", "activation", "ordered"), EXPERTS)
def test_experts_of_four_bits_are_the_weights_that_their_codes_stand_for(
    up: tuple[Code, int], down: tuple[Code, int] | None, activation: Activation, ordered: bool
) -> None:
    """Both projections may have codes of different kinds, or ordinary weights; a shared expert as well."""
    E, d, f, g, inner = 3, 64, 96, 64, activation.projections
    batch = ExpertBatch(7, E=E, k=2, d=d, f=f, activation=activation, dtype=torch.float32, shared_f=g)
    assert batch.shared is not None
    held: dict[str, FourBitMatrix | torch.Tensor] = {"down": batch.down}
    own: dict[str, FourBitMatrix | torch.Tensor] = {"down": batch.shared.down}
    held["gate_up"], batch.gate_up = random_matrix(
        up[0], E, inner * f, inputs=d, group=up[1], ordered=ordered
    )
    own["gate_up"], of_shared = random_matrix(up[0], inner * g, inputs=d, group=up[1])
    batch.shared = replace(batch.shared, gate_up=of_shared)
    if down is not None:
        held["down"], batch.down = random_matrix(down[0], E, d, inputs=f, group=down[1], ordered=ordered)
    expected = batch.expected()
    for name, weight in held.items():
        setattr(batch, name, weight)
    batch.shared = replace(batch.shared, **own)
    close(batch.run(moe), expected, sums=4)
    wide = batch.run(reference.moe)
    close(wide, expected, sums=4)
