"""The products of linear layers, also where the CPU only emulates bfloat16."""

import pytest
import torch

from mamba_server.model.layers import linear
from mamba_server.model.layers.linear import MIN_CONVERTED_ROWS, Linear


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "emulates_bfloat16", lambda: True)
    monkeypatch.setattr(linear, "_BLOCK_WEIGHTS", 700)


def layer(row_tile: int = 0) -> Linear:
    torch.manual_seed(0)
    return Linear(torch.randn(50, 64).bfloat16(), torch.randn(50).bfloat16(), row_tile)


@pytest.mark.parametrize("rows", [1, MIN_CONVERTED_ROWS, 5 * MIN_CONVERTED_ROWS + 3])
@pytest.mark.parametrize("row_tile", [0, MIN_CONVERTED_ROWS])
@pytest.mark.usefixtures("emulated")
def test_where_bfloat16_is_emulated_the_product_is_that_of_float32_rounded_once(
    rows: int, row_tile: int
) -> None:
    made = layer(row_tile)
    x = torch.randn(rows, 64).bfloat16()
    assert made.bias is not None
    exact = x.float() @ made.weight.float().T + made.bias.float()
    got = made(x)
    assert got.dtype is torch.bfloat16
    assert torch.allclose(got.float(), exact, rtol=2**-7, atol=2**-7)


@pytest.mark.usefixtures("emulated")
def test_many_rows_never_multiply_bfloat16_there(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    real = linear.F.linear

    def noted(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        seen.append((weight.dtype, weight.numel()))
        return real(x, weight, bias)

    monkeypatch.setattr(linear.F, "linear", noted)
    layer()(torch.randn(MIN_CONVERTED_ROWS, 64).bfloat16())
    assert {dtype for dtype, _ in seen} == {torch.float32}
    assert max(size for _, size in seen) <= 700
    seen.clear()
    layer()(torch.randn(1, 64).bfloat16())
    assert [dtype for dtype, _ in seen] == [torch.bfloat16]
