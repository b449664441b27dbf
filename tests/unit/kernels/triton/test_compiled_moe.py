"""A mixture of experts compiles for every GPU we name: nothing spilled, 128 bits a load, tensor cores."""

import pytest
import torch

from compiled_kernel import compiled
from mamba_kernels.moe import Activation, SharedExpert
from mamba_kernels.moe.triton import calls

GRANITE_TINY = (64, 6, 1536, 512, 1024, Activation.GATED_SILU)
NEMOTRON_NANO = (128, 6, 2688, 1856, 3712, Activation.SQUARED_RELU)


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    ("n", "shape", "capability"),
    [
        (1, GRANITE_TINY, 80),
        (4096, GRANITE_TINY, 80),
        (1, NEMOTRON_NANO, 90),
        (4096, NEMOTRON_NANO, 90),
        (4096, GRANITE_TINY, 90),
        (1, GRANITE_TINY, 100),
        (4096, GRANITE_TINY, 100),
    ],
)
def test_moe(n: int, shape: tuple[int, int, int, int, int, Activation], capability: int) -> None:
    E, k, d, f, shared_f, activation = shape
    up = activation.projections
    shared = SharedExpert(meta(up * shared_f, d), meta(d, shared_f))
    made = calls(
        meta(n, d),
        meta(n, k, dtype=torch.int32),
        meta(n, k, dtype=torch.float32),
        meta(E, up * f, d),
        meta(E, d, f),
        activation,
        meta(n, d),
        shared,
    )
    count, place, *products, combine = [compiled(call, capability) for call in made]
    assert len(products) == 4
    for kernel in (count, place, *products, combine):
        assert kernel.stack == 0
    for kernel in products:
        assert kernel.widest_load == 128
        assert kernel.tensor_cores
    assert combine.widest_load == combine.widest_store == 128
