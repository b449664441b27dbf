"""A mixture of experts compiles for every GPU we name: nothing spilled, 128 bits a load, tensor cores."""

import pytest
import torch

from compiled_kernel import CAPABILITIES, compiled
from mamba_kernels.moe import Activation, Routing, SharedExpert
from mamba_kernels.moe.expert_blocks import MAX_PAIRS_COUNTED_INLINE
from mamba_kernels.moe.route_kernel import route_call
from mamba_kernels.moe.triton import calls
from matrix_size import LARGE

GRANITE_TINY = (64, 6, 1536, 512, 1024, Activation.GATED_SILU)
NEMOTRON_NANO = (128, 6, 2688, 1856, 3712, Activation.SQUARED_RELU)


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


CASES = [
    (1, NEMOTRON_NANO, 90),
    (4096, NEMOTRON_NANO, 90),
    (4096, GRANITE_TINY, 90),
]
OTHER_CASES = [
    (1, GRANITE_TINY, 80),
    (4096, GRANITE_TINY, 80),
    (1, GRANITE_TINY, 100),
    (4096, GRANITE_TINY, 100),
]


@pytest.mark.slow
@pytest.mark.parametrize(("n", "shape", "capability"), [*CASES, *(OTHER_CASES if LARGE else ())])
def test_moe(n: int, shape: tuple[int, int, int, int, int, Activation], capability: int) -> None:
    E, k, d, f, shared_f, activation = shape
    up = activation.projections
    logit = meta(n, E + 1, dtype=torch.float32)[:, E]
    shared = SharedExpert(meta(up * shared_f, d), meta(d, shared_f), logit)
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
    *sort, first, second, of_shared, its_second, combine = [compiled(call, capability) for call in made]
    products = [first, second, of_shared, its_second]
    assert len(sort) == (1 if n * k <= MAX_PAIRS_COUNTED_INLINE else 2)
    for kernel in (*sort, *products, combine):
        assert kernel.stack == 0
    for kernel in products:
        assert kernel.widest_load == 128
        assert kernel.tensor_cores
    assert combine.widest_load == combine.widest_store == 128


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize(
    ("experts", "routing"),
    [
        (72, Routing(10, "softmax", True)),
        (512, Routing(10, "softmax", True)),
        (128, Routing(6, "sigmoid", True, 2.5)),
        (256, Routing(8, "sigmoid", True, 2.5, groups=8, kept_groups=4)),
    ],
)
def test_a_choice_takes_one_warp_without_barriers_and_spills_nothing(
    experts: int, routing: Routing, capability: int
) -> None:
    wide, k = torch.float32, routing.top_k
    correction = meta(experts, dtype=wide) if routing.scores == "sigmoid" else None
    call = route_call(
        meta(3, experts, dtype=wide),
        routing,
        correction,
        meta(3, k, dtype=torch.int32),
        meta(3, k, dtype=wide),
    )
    kernel = compiled(call, capability)
    assert kernel.stack == 0
    assert "bar.sync" not in kernel.ptx
    assert "redux.sync" in kernel.ptx
