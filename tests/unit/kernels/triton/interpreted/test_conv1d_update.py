"""One token of the convolution equals the reference; windows move, are tracked, and stay raw to the bit."""

import pytest
import torch

from mamba_kernels.conv1d_update import reference
from mamba_kernels.conv1d_update.triton import conv1d_update
from mamba_kernels.slot_plan import SlotPlan
from testmodels.chunks import CPU, ints, strided_cache
from triton_close import close

PLAN = SlotPlan.build(ints([1, 2, -1, 3]), ints([1, 5, 6, 3]), ints([-1, 7, -1, 8]), CPU)


@pytest.mark.parametrize(
    ("channels", "K", "kind", "biased"),
    [
        (1, 4, torch.float32, True),
        (63, 2, torch.bfloat16, False),
        (257, 4, torch.bfloat16, True),
        (600, 5, torch.float32, False),
    ],
)
def test_rows_equal_the_reference(channels: int, K: int, kind: torch.dtype, biased: bool) -> None:
    g = torch.Generator().manual_seed(channels + K)
    x = torch.randn(4, channels + 5, generator=g).to(kind)[:, 2:-3]
    weight, bias = torch.randn(K, channels, generator=g), torch.randn(channels, generator=g)
    window = strided_cache(10, K - 1, channels, dtype=kind)
    window[1:4] = torch.randn(3, K - 1, channels, generator=g).to(kind)
    exact, moved = window.double(), window.clone()
    expected = reference.conv1d_update(
        x.double(), weight.double(), bias.double() if biased else None, exact, PLAN
    )
    out = conv1d_update(x, weight, bias if biased else None, moved, PLAN)
    assert out.dtype == kind
    close(out, expected)
    torch.testing.assert_close(moved.double(), exact, rtol=0, atol=0, equal_nan=True)


def test_a_row_of_padding_touches_no_window() -> None:
    x, weight = torch.ones(2, 8), torch.ones(4, 8)
    window = strided_cache(4, 3, 8, dtype=torch.float32)
    window[1] = 2.0
    before = window.clone()
    plan = SlotPlan.build(ints([1, -1]), ints([1, -1]), ints([-1, -1]), CPU)
    assert conv1d_update(x, weight, None, window, plan).isfinite().all()
    assert window[1, -1].eq(1.0).all()
    torch.testing.assert_close(window[[0, 2, 3]], before[[0, 2, 3]], rtol=0, atol=0, equal_nan=True)
