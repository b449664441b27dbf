"""Experts with packed weights: right for any rows, the same bits on any threads and beside any rows."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from mamba_kernels.cpu.experts import PackedExperts
from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.packed_linear import PackedMatrix, PackedWeight
from mamba_kernels.cpu.quantized.int4_weight import Int4Weight
from mamba_kernels.cpu.quantized.int8_weight import QuantizedWeight
from mamba_kernels.moe import Activation
from testmodels.experts import ExpertBatch

pytestmark = pytest.mark.matrix_unit

KINDS = [(torch.float32, 2e-6), (torch.bfloat16, 2**-7)]
Pack = Callable[[torch.Tensor], PackedMatrix]


def packed(library: Library, batch: ExpertBatch, pack: Pack = PackedWeight) -> PackedExperts:
    experts = [(pack(up), pack(down)) for up, down in zip(batch.gate_up, batch.down, strict=True)]
    shared, gate = batch.shared, None
    if shared is not None:
        # What the shared expert counts for follows from the row.
        gate = torch.linspace(-2, 3, batch.hidden.shape[1])
        batch.shared = replace(shared, logit=batch.hidden.double() @ gate.double())
    return PackedExperts(
        library, experts, batch.activation, shared and (pack(shared.gate_up), pack(shared.down)), gate
    )


def run(made: PackedExperts, batch: ExpertBatch, rows: slice = slice(None)) -> torch.Tensor:
    return made(batch.hidden[rows], batch.experts[rows], batch.weights[rows])


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize(("dtype", "tolerance"), KINDS)
@pytest.mark.parametrize(
    ("n", "k", "d", "f", "shared_f"), [(1, 1, 16, 16, 0), (1, 8, 33, 17, 40), (70, 3, 100, 63, 65)]
)
def test_rows_equal_their_definition(
    library: Library,
    n: int,
    k: int,
    d: int,
    f: int,
    shared_f: int,
    dtype: torch.dtype,
    tolerance: float,
    activation: Activation,
) -> None:
    batch = ExpertBatch(n, E=9, k=k, d=d, f=f, activation=activation, dtype=dtype, shared_f=shared_f)
    got, expected = run(packed(library, batch), batch), batch.expected()
    assert got.dtype == dtype
    # Inner features and parts are rounded to the type of the weights, as in transformers.
    torch.testing.assert_close(
        got.double(), expected, rtol=tolerance, atol=tolerance * float(expected.abs().max())
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", [QuantizedWeight, Int4Weight])
def test_quantized_experts_are_near_those_of_their_rounded_weights(
    library: Library, form: type[QuantizedWeight | Int4Weight], dtype: torch.dtype
) -> None:
    batch = ExpertBatch(40, d=64, f=48, dtype=dtype, shared_f=32)
    got = run(packed(library, batch, form), batch)
    assert batch.shared is not None
    every: list[torch.Tensor] = [*batch.gate_up, *batch.down, batch.shared.gate_up, batch.shared.down]
    for matrix in every:
        matrix.copy_(form(matrix.clone()).rows(torch.arange(len(matrix))))
    expected = batch.expected()
    # Rows and inner features are made int8 as well: half a percent each, and twice for a gate and its values.
    off = (got.double() - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    assert off < 0.02


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_alone_among_others_and_on_any_number_of_threads(
    library: Library, threads: int, dtype: torch.dtype
) -> None:
    batch = ExpertBatch(200, E=7, k=3, d=100, f=63, dtype=dtype, shared_f=40)
    made = packed(library, batch)
    library.set_threads(1)
    alone = torch.cat([run(made, batch, slice(row, row + 1)) for row in range(0, 200, 13)])
    library.set_threads(threads)
    assert torch.equal(run(made, batch)[::13], alone)


def test_a_row_without_experts_becomes_zero_whatever_it_holds(library: Library) -> None:
    batch = ExpertBatch(6, dtype=torch.float32)
    made = packed(library, batch)
    before = run(made, batch)
    batch.experts[2], batch.hidden[2] = -1, float("nan")
    after = run(made, batch)
    assert not after[2].any()
    others = [0, 1, 3, 4, 5]
    assert torch.equal(after[others], before[others])


def test_a_shared_expert_counts_one_where_nothing_else_is_said(library: Library) -> None:
    batch = ExpertBatch(4, dtype=torch.float32, shared_f=8)
    experts = [
        (PackedWeight(up), PackedWeight(down)) for up, down in zip(batch.gate_up, batch.down, strict=True)
    ]
    assert batch.shared is not None
    shared = PackedWeight(batch.shared.gate_up.clone()), PackedWeight(batch.shared.down.clone())
    batch.shared = replace(batch.shared, logit=None)
    got = run(PackedExperts(library, experts, batch.activation, shared), batch)
    torch.testing.assert_close(got.double(), batch.expected(), rtol=2e-6, atol=2e-6)


def test_no_rows_make_no_rows(library: Library) -> None:
    batch = ExpertBatch(0, dtype=torch.float32, shared_f=8)
    assert run(packed(library, batch), batch).shape == (0, 24)


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_instruction_set_gives_the_same_bits(
    assert_products_have_same_bits: Callable[..., None], dtype: torch.dtype, activation: Activation
) -> None:
    batch = ExpertBatch(70, E=6, k=3, d=100, f=63, activation=activation, dtype=dtype, shared_f=40)
    assert_products_have_same_bits(lambda library: (run(packed(library, batch), batch),))
