"""FP8 compiles for each GPU that has it: nothing spilled, 128 bits a load, tensor cores."""

import pytest
import torch

from compiled_kernel import compiled
from mamba_kernels.fp8 import Fp8Matrix, Fp8Rows
from mamba_kernels.fp8.matrix import KIND
from mamba_kernels.fp8.triton import norm_call, product_call
from mamba_kernels.moe import Activation, SharedExpert
from mamba_kernels.moe.triton import calls
from matrix_size import LARGE

pytestmark = pytest.mark.slow
CAPABILITIES = (89, 90, 100)
GROUP = 128


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def fp8(*shape: int, grouped: bool) -> Fp8Matrix:
    groups = -(-shape[-1] // GROUP) if grouped else 1
    return Fp8Matrix(meta(*shape, dtype=KIND), meta(*shape[:-1], groups, dtype=torch.float32))


PRODUCTS = [
    (capability, rows, grouped)
    for capability in CAPABILITIES
    for rows in (1, 4096)
    for grouped in (False, True)
]


@pytest.mark.parametrize(
    ("capability", "rows", "grouped"), PRODUCTS if LARGE else [(89, 4096, True), (90, 1, False)]
)
def test_product(capability: int, rows: int, grouped: bool) -> None:
    matrix = fp8(4096, 2048, grouped=grouped)
    left = Fp8Rows(meta(rows, 2048, dtype=KIND), meta(rows, matrix.groups, dtype=torch.float32))
    kernel = compiled(product_call(left, matrix, None, meta(rows, 4096)), capability)
    assert kernel.stack == 0
    assert kernel.widest_load == 128
    assert kernel.tensor_cores


@pytest.mark.parametrize(
    ("capability", "groups"),
    [(each, groups) for each in CAPABILITIES for groups in (1, 21)] if LARGE else [(100, 21)],
)
def test_norm(capability: int, groups: int) -> None:
    rows = Fp8Rows(meta(8, 2688, dtype=KIND), meta(8, groups, dtype=torch.float32))
    x = meta(8, 2688)
    kernel = compiled(norm_call(x, meta(2688), 1e-5, meta(8, 2688), meta(8, 2688), rows), capability)
    assert kernel.stack == 0
    assert kernel.widest_load == kernel.widest_store == 128


EXPERTS = [
    (capability, n, activation, grouped)
    for capability in CAPABILITIES
    for n in (1, 4096)
    for activation in Activation
    for grouped in (False, True)
]


@pytest.mark.parametrize(
    ("capability", "n", "activation", "grouped"),
    EXPERTS if LARGE else [(89, 4096, Activation.GATED_SILU, True)],
)
def test_experts(capability: int, n: int, activation: Activation, grouped: bool) -> None:
    E, k, d, f = (512, 10, 2048, 512) if activation is Activation.GATED_SILU else (128, 6, 2688, 1856)
    up, down = fp8(E, activation.projections * f, d, grouped=grouped), fp8(E, d, f, grouped=grouped)
    one_up, one_down = fp8(activation.projections * f, d, grouped=grouped), fp8(d, f, grouped=grouped)
    shared = SharedExpert(one_up, one_down)
    made = calls(
        meta(n, d), meta(n, k, dtype=torch.int32), meta(n, k, dtype=torch.float32), up, down,
        activation, meta(n, d), shared,
    )  # fmt: skip
    products = [call for call in made if "GROUPED" in call.constants]
    assert len(products) == 4
    for call in products if LARGE else products[:1]:
        kernel = compiled(call, capability)
        assert kernel.stack == 0
        assert kernel.widest_load == 128
        assert kernel.tensor_cores
