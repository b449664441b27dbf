"""Rotary positions of rows of awkward sizes."""

import pytest
import torch

from mamba_kernels.rope import frequencies, turns
from mamba_kernels.rope import rope as reference
from mamba_kernels.rope.triton import rope
from triton_close import close


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "width", "half"), [(1, 2, 1), (3, 10, 3), (5, 64, 32)])
def test_it_equals_the_reference_and_touches_nothing_else(
    heads: int, width: int, half: int, kind: torch.dtype
) -> None:
    wide = torch.randn(3, heads * width + 5, generator=torch.Generator().manual_seed(width)).to(kind)
    x, beside = wide[:, : heads * width].unflatten(1, (heads, width)), wide[:, heads * width :].clone()
    cos, sin = turns(torch.tensor([0, 9, 4000]), frequencies(10_000.0, 2 * half, torch.device("cpu")))
    expected = x.double()
    reference(expected, cos, sin)
    rope(x, cos, sin)
    close(x, expected)
    assert torch.equal(wide[:, heads * width :], beside)


def test_no_rows_are_no_launch() -> None:
    rope(torch.empty(0, 2, 8), torch.empty(0, 4), torch.empty(0, 4))
