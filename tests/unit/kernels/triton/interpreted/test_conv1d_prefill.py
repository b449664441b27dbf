"""The convolution of ragged pieces equals the reference; windows are raw inputs to the bit."""

import pytest
import torch

from mamba_kernels.conv1d_prefill import reference
from mamba_kernels.conv1d_prefill.triton import conv1d_prefill
from matrix_size import LARGE
from testmodels.chunks import PiecePlan, chunk_plan, strided_cache
from triton_close import close

PIECES = [
    PiecePlan(0, 1, -1, 1, {}),
    PiecePlan(0, 2, -1, 2, {1: 10}),
    PiecePlan(40, 1, 3, 3, {41: 11}),
    PiecePlan(30, 100, 4, 5, {31: 12, 32: 13, 64: 14, 130: 15}),
    PiecePlan(62, 7, 7, 7, {63: 16, 65: 17, 66: 18}),
    PiecePlan(9, 257, 4, 6, {128: 19}),
]


@pytest.mark.parametrize(
    ("channels", "K", "kind", "biased"),
    [
        (1, 4, torch.float32, True),
        (257, 4, torch.bfloat16, True),
        (63, 2, torch.bfloat16, False),
        (16, 7, torch.float32, True),
    ][:: 1 if LARGE else 2],
)
def test_ragged_pieces_equal_the_reference(channels: int, K: int, kind: torch.dtype, biased: bool) -> None:
    plan = chunk_plan(PIECES, 64)
    g = torch.Generator().manual_seed(channels + K)
    x = torch.randn(plan.tokens, channels + 5, generator=g).to(kind)[:, 2:-3]
    weight, bias = torch.randn(K, channels, generator=g), torch.randn(channels, generator=g)
    window = strided_cache(21, K - 1, channels, dtype=kind)
    window[[3, 4, 7]] = torch.randn(3, K - 1, channels, generator=g).to(kind)
    exact, moved = window.double(), window.clone()
    expected = reference.conv1d_prefill(
        x.double(), weight.double(), bias.double() if biased else None, exact, plan
    )
    out = conv1d_prefill(x, weight, bias if biased else None, moved, plan)
    assert out.dtype == kind
    close(out, expected)
    torch.testing.assert_close(moved.double(), exact, rtol=0, atol=0, equal_nan=True)
