"""Triton's FP8 is the reference's: the same bits of rounded rows, and the same products and experts."""

import pytest
import torch

from mamba_kernels.fp8 import Fp8Matrix
from mamba_kernels.fp8 import triton as kernels
from mamba_kernels.fp8.matrix import quantized
from mamba_kernels.fp8.reference import fp8_norm, fp8_product
from mamba_kernels.moe import Activation, SharedExpert
from mamba_kernels.moe.reference import moe as moe_reference
from mamba_kernels.moe.triton import moe
from testmodels.experts import ExpertBatch
from triton_close import close

pytestmark = pytest.mark.slow


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("width", "groups"), [(40, 1), (300, 1), (300, 3), (128, 1)])
def test_rows_become_the_same_bits(width: int, groups: int) -> None:
    x = random(4, width) * torch.tensor([1e-20, 1.0, 1e20, 0.0])[:, None]
    # Multiples of a sixteenth fall on ties, and below the smallest normal number.
    x[1] = (x[1] * 16).round() / 16
    x[1, 0], x[1, 1] = 448.0, 2.0**-9 * 1.5
    ours, theirs = kernels.fp8_rows(x, groups), quantized(x, groups)
    assert torch.equal(ours.numbers.float(), theirs.numbers.float())
    assert torch.equal(ours.scales, theirs.scales)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_norm_and_the_rounding_of_its_result_are_one_launch(groups: int) -> None:
    x, added, weight = random(3, 200), random(3, 200, seed=1), random(200, seed=2)
    total = x.clone()
    normed, rows = kernels.fp8_norm(x, weight, 1e-5, added, torch.float32, groups)
    expected, _ = fp8_norm(total, weight, 1e-5, added, torch.float32, groups)
    assert torch.equal(x, total)
    close(normed, expected)
    again = quantized(normed, groups)
    assert torch.equal(rows.numbers.float(), again.numbers.float())
    assert torch.equal(rows.scales, again.scales)


@pytest.mark.parametrize(("rows", "groups", "dtype"), [(3, 2, torch.float32), (70, 1, torch.bfloat16)])
def test_products_equal_the_reference(rows: int, groups: int, dtype: torch.dtype) -> None:
    left, right = quantized(random(rows, 200), groups), quantized(random(90, 200, seed=1), groups)
    matrix, bias = Fp8Matrix(right.numbers, right.scales), random(90, seed=2).to(dtype)
    product = kernels.fp8_product(left, matrix, bias, dtype)
    close(product, fp8_product(left, matrix, bias, torch.float32), 4)


@pytest.mark.parametrize(("activation", "groups"), [(Activation.GATED_SILU, 2), (Activation.SQUARED_RELU, 1)])
def test_experts_equal_the_reference(activation: Activation, groups: int) -> None:
    batch = ExpertBatch(5, E=3, d=150, f=140, activation=activation, dtype=torch.float32, shared_f=130)
    assert batch.shared is not None

    def fp8(weight: torch.Tensor) -> Fp8Matrix:
        rows = quantized(weight.flatten(0, -2), groups)
        return Fp8Matrix(rows.numbers.view(weight.shape), rows.scales.view(*weight.shape[:-1], groups))

    up, down, *own = map(fp8, (batch.gate_up, batch.down, batch.shared.gate_up, batch.shared.down))
    shared = SharedExpert(*own, batch.shared.logit)
    outs = []
    for operator in (moe, moe_reference):
        outs.append(torch.empty(5, 150))
        operator(batch.hidden, batch.experts, batch.weights, up, down, activation, outs[-1], shared)
    close(*outs, 4)
