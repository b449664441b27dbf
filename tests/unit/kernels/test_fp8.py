"""FP8 as GPUs compute with it: the nearest number, ties to even, the largest one beyond; sums of float32."""

import pytest
import torch

from mamba_kernels.fp8 import Fp8Matrix, Fp8Rows, fp8_norm, fp8_product
from mamba_kernels.fp8.matrix import KIND, joined, of_inputs, quantized, stacked
from mamba_kernels.moe import Activation, SharedExpert
from mamba_kernels.moe.reference import moe
from testmodels.experts import ExpertBatch


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def values(each: Fp8Rows | Fp8Matrix) -> torch.Tensor:
    """Return the float64 numbers that FP8 and its scales stand for."""
    return each.numbers.double() * of_inputs(each.scales, each.numbers.shape[-1]).double()


def test_each_number_becomes_the_nearest_one_and_a_tie_the_even_one() -> None:
    every = torch.arange(127, dtype=torch.uint8).view(KIND).double()
    assert every.max() == 448
    between = (every[1:] + every[:-1]) / 2
    x = torch.cat([every, between, between * 0.999, between * 1.001, torch.tensor([448.0])])
    x = torch.cat([x, -x])
    rounded = quantized(x[None].float(), 1)
    assert rounded.scales.item() == 1
    distance = (x.float().double()[:, None].abs() - every).abs()
    nearest = distance == distance.amin(1, keepdim=True)
    # Of two that are as near the one with an even code counts.
    codes = torch.where(nearest, torch.arange(127) % 2, 2).argmin(1)
    assert torch.equal(rounded.numbers[0].double(), torch.where(x < 0, -1, 1) * every[codes])


@pytest.mark.parametrize("groups", [1, 2])
def test_the_largest_number_of_a_scale_is_the_largest_that_there_is(groups: int) -> None:
    x = random(5, 200) * torch.tensor([1e-30, 1.0, 300.0, 1e30, 0.0])[:, None]
    rows = quantized(x, groups)
    assert rows.scales.shape == (5, groups)
    for part in rows.numbers[:4].float().split(200 if groups == 1 else 128, 1):
        assert torch.equal(part.abs().amax(1), torch.full((4,), 448.0))
    assert not rows.numbers[4].float().any()
    near = 2.0**-4 * x.abs() + of_inputs(rows.scales, 200) * 2.0**-10
    assert bool(((values(rows) - x.double()).abs() <= near).all())


@pytest.mark.parametrize(("groups", "dtype"), [(1, torch.float32), (2, torch.float32), (1, torch.bfloat16)])
def test_a_product_is_that_of_the_same_numbers_in_float64(groups: int, dtype: torch.dtype) -> None:
    rows, outputs = quantized(random(4, 200), groups), quantized(random(7, 200, seed=1), groups)
    matrix, bias = Fp8Matrix(outputs.numbers, outputs.scales), random(7, seed=2).to(dtype)
    product = fp8_product(rows, matrix, bias, dtype)
    exact = values(rows) @ values(matrix).t() + bias.double()
    assert product.dtype == dtype
    step = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(product.double(), exact, rtol=step, atol=20 * torch.finfo(torch.float32).eps)


def test_a_norm_rounds_what_it_returns() -> None:
    x, added, weight = random(3, 40), random(3, 40, seed=1), random(40, seed=2).bfloat16()
    total = x + added
    normed, rows = fp8_norm(x, weight, 1e-5, added, torch.bfloat16, 1)
    assert torch.equal(x, total)
    again = quantized(normed, 1)
    assert torch.equal(rows.numbers.view(torch.uint8), again.numbers.view(torch.uint8))
    assert torch.equal(rows.scales, again.scales)


def test_parts_of_matrices_stand_for_the_parts_of_what_these_stand_for() -> None:
    first, second = (Fp8Matrix.of(random(rows, 30, seed=rows)) for rows in (4, 6))
    whole = joined([first, second])
    assert torch.equal(values(whole), torch.cat([values(first), values(second)]))
    chosen = torch.tensor([7, 2])
    assert torch.equal(values(whole.select(chosen)), values(whole)[chosen])
    factor = torch.linspace(1, 2, 10)
    torch.testing.assert_close(values(whole.scaled(factor)), values(whole) * factor[:, None].double())
    every = Fp8Matrix.of(torch.stack([random(4, 30, seed=each) for each in range(3)]))
    alone = stacked([Fp8Matrix.of(random(4, 30, seed=each)) for each in range(3)])
    assert torch.equal(values(every), values(alone))
    assert every.nbytes == 3 * 4 * 30 + 3 * 4 * 4


@pytest.mark.parametrize("activation", [*Activation])
def test_experts_in_fp8_are_those_that_their_numbers_stand_for(activation: Activation) -> None:
    batch = ExpertBatch(6, d=40, f=12, activation=activation, dtype=torch.float32, shared_f=9)
    up, down = Fp8Matrix.of(batch.gate_up), Fp8Matrix.of(batch.down)
    assert batch.shared is not None
    of_all = Fp8Matrix.of(batch.shared.gate_up), Fp8Matrix.of(batch.shared.down)
    shared = SharedExpert(*of_all, batch.shared.logit)
    out = torch.empty(6, 40)
    moe(batch.hidden, batch.experts, batch.weights, up, down, activation, out, shared)
    batch.gate_up, batch.down = up.plain(torch.float32), down.plain(torch.float32)
    batch.shared = SharedExpert(*(each.plain(torch.float32) for each in of_all), batch.shared.logit)
    torch.testing.assert_close(out.double(), batch.expected(), rtol=1e-5, atol=1e-5)
