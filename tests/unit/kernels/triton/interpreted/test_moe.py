"""Grouped products on Triton equal each pair of row and expert alone, in float64."""

from dataclasses import replace

import pytest
import torch

from mamba_kernels.moe.triton import moe
from mamba_kernels.triton_support import UnsupportedArgument
from testmodels.experts import experts, inputs, pair_by_pair


@pytest.mark.parametrize(
    ("n", "k", "count", "d", "inner", "gated", "activation", "dtype"),
    [
        (1, 1, 1, 1, 1, False, "relu", torch.float32),
        (1, 6, 64, 100, 63, True, "silu", torch.bfloat16),
        (9, 2, 3, 63, 130, False, "relu2", torch.float32),
        (90, 3, 2 + 2, 33, 20, True, "silu", torch.float16),
        (2, 8, 9, 257, 5, True, "relu2", torch.bfloat16),
    ],
)
def test_rows_are_the_sums_of_their_pairs(
    n: int, k: int, count: int, d: int, inner: int, gated: bool, activation: str, dtype: torch.dtype
) -> None:
    of = experts(count, d, inner, gated=gated, activation=activation, dtype=dtype)
    x, chosen, weights = inputs(n, k, count, d, dtype)
    expected = pair_by_pair(x, chosen, weights, of)
    step = max(torch.finfo(dtype).eps, 1e-6)
    strided = torch.full((n, d + 3), torch.nan, dtype=dtype)
    strided[:, :d] = x
    got = moe(strided[:, :d], chosen, weights, of)
    torch.testing.assert_close(got.double(), expected, rtol=8 * step, atol=8 * step)


def test_the_same_experts_give_a_row_the_same_bits_every_time() -> None:
    of = experts(5, 40, 24, gated=True, activation="silu", dtype=torch.float32)
    x, chosen, weights = inputs(30, 3, 5, 40, torch.float32)
    assert torch.equal(moe(x, chosen, weights, of), moe(x, chosen, weights, of))


def test_what_does_not_fit_together_is_named() -> None:
    of = experts(3, 8, 4, gated=True, activation="silu", dtype=torch.float32)
    x, chosen, weights = inputs(2, 2, 3, 8, torch.float32)
    wrong = {
        "x": (x.double(), chosen, weights, of),
        "chosen": (x, chosen.long(), weights, of),
        "weights": (x, chosen, weights[:1], of),
        "experts.up": (x, chosen, weights, replace(of, gated=False)),
        "experts.down": (x, chosen, weights, replace(of, down=of.down[:, :7])),
        "experts.activation": (x, chosen, weights, replace(of, activation="tanh")),
    }
    for name, arguments in wrong.items():
        with pytest.raises(UnsupportedArgument, match=f"^{name} "):
            moe(*arguments)
