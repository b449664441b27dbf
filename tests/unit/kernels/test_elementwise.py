"""Elementwise functions have torch's values, and the same bits for an element wherever it stands."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from mamba_kernels.elementwise import sigmoid, silu, softplus

Function = Callable[[torch.Tensor], torch.Tensor]
PAIRS: list[tuple[Function, Function]] = [(silu, F.silu), (sigmoid, torch.sigmoid), (softplus, F.softplus)]


@pytest.mark.parametrize(("ours", "torchs"), PAIRS)
def test_values_are_those_of_torch_up_to_the_ends_of_the_range(ours: Function, torchs: Function) -> None:
    x = torch.tensor([-1e4, -100.0, -1.0, 0.0, 1.0, 15.0, 100.0, 1e4])
    before = x.clone()
    torch.testing.assert_close(ours(x), torchs(x))
    assert torch.equal(x, before)


@pytest.mark.parametrize("ours", [ours for ours, _ in PAIRS])
def test_the_place_of_a_row_does_not_change_its_bits(ours: Function) -> None:
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    together = ours(x)
    for row in range(40):
        assert torch.equal(ours(x[row : row + 1])[0], together[row])
