"""Products with four bits compile for every GPU we name: nothing spilled, 128 bits a load, tensor cores."""

import os

import pytest
import torch

from compile_matrix import SHARED
from compiled_kernel import compiled
from mamba_kernels.four_bit.matrix import Code, FourBitMatrix
from mamba_kernels.four_bit.triton import TILE_ROWS
from mamba_kernels.four_bit.triton import calls as dense
from mamba_kernels.moe import Activation
from mamba_kernels.moe.triton import calls as experts

WHOLE = os.environ.get("MAMBASERVE_COMPILED") == "all"
KINDS = ((Code.INTEGER, 32), (Code.INTEGER_ZEROS, 128), (Code.NVFP4, 16), (Code.MXFP4, 32))
DENSE = (
    [
        (capability, code, group, rows, ordered)
        for capability in SHARED
        for code, group in KINDS
        for rows, _ in TILE_ROWS
        for ordered in (False, True)
    ]
    if WHOLE
    else [(90, Code.NVFP4, 16, 257, False)]
)
EXPERTS = (
    [
        (capability, code, group, rows, activation)
        for capability in SHARED
        for code, group in KINDS
        for rows in (1, 640, 4096)
        for activation in Activation
    ]
    if WHOLE
    else [(90, Code.NVFP4, 16, 1, Activation.SQUARED_RELU)]
)


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def matrix(code: Code, *outer: int, inputs: int, group: int, ordered: bool = False) -> FourBitMatrix:
    integers = code in (Code.INTEGER, Code.INTEGER_ZEROS)
    groups = (*outer, -(-inputs // group))
    return FourBitMatrix(
        code,
        meta(*outer, inputs // 2, dtype=torch.uint8),
        meta(*groups, dtype=torch.float16 if integers else torch.uint8),
        group,
        meta(*groups, dtype=torch.uint8) if code is Code.INTEGER_ZEROS else None,
        None if integers else meta(*outer, dtype=torch.float32),
        meta(*outer[:-1], inputs, dtype=torch.int32) if ordered else None,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("capability", "code", "group", "rows", "ordered"), DENSE)
def test_a_product(capability: int, code: Code, group: int, rows: int, ordered: bool) -> None:
    """The sizes are those of the input projection of Nemotron 3 Nano."""
    weight = matrix(code, 10304, inputs=2688, group=group, ordered=ordered)
    for call in dense(meta(rows, 2688), weight, None, meta(rows, 10304)):
        kernel = compiled(call, capability)
        assert kernel.stack == 0
        assert kernel.shared <= SHARED[capability]
        assert kernel.widest_load == kernel.widest_store == 128
        assert kernel.tensor_cores or call.kernel.__name__ == "add_kernel"


@pytest.mark.slow
@pytest.mark.parametrize(("capability", "code", "group", "rows", "activation"), EXPERTS)
def test_experts(capability: int, code: Code, group: int, rows: int, activation: Activation) -> None:
    """The sizes are those of Nemotron 3 Nano and of Qwen3.6 35B."""
    gated = activation is Activation.GATED_SILU
    E, k, d, f = (256, 8, 2048, 512) if gated else (128, 6, 2688, 1856)
    up = matrix(code, E, activation.projections * f, inputs=d, group=group if d % group == 0 else 32)
    down = matrix(code, E, d, inputs=f, group=group if f % group == 0 else 32)
    chosen, weights = meta(rows, k, dtype=torch.int32), meta(rows, k, dtype=torch.float32)
    calls = experts(meta(rows, d), chosen, weights, up, down, activation, meta(rows, d))
    products = [call for call in calls if "FORM" in call.constants]
    assert len(products) == 2
    for call in products:
        kernel = compiled(call, capability)
        assert kernel.stack == 0
        assert kernel.shared <= SHARED[capability]
        assert kernel.widest_load == 128
        assert kernel.tensor_cores
