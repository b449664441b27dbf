"""Norms and step size equal their definitions, keep their types and do not overflow."""

import pytest
import torch
import torch.nn.functional as F

from mamba_kernels.gated_norm import gated_norm
from mamba_kernels.rms_norm import rms_norm
from mamba_kernels.step_size import step_size

KINDS = [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)]


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("dtype", "tolerance"), KINDS)
@pytest.mark.parametrize("width", [1, 63, 100, 257])
def test_rms_norm_equals_its_definition(dtype: torch.dtype, tolerance: float, width: int) -> None:
    x, weight = rand(5, width).to(dtype), rand(width, seed=1).to(dtype)
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    got = rms_norm(x, weight, 1e-5)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance)


def test_rms_norm_of_parts_is_that_of_each() -> None:
    x, weight = rand(5, 24), rand(24, seed=1)
    before = x.clone()
    parts = [rms_norm(x[:, at : at + 6], weight[at : at + 6], 1e-5) for at in range(0, 24, 6)]
    torch.testing.assert_close(rms_norm(x, weight, 1e-5, groups=4), torch.cat(parts, 1))
    assert torch.equal(x, before)


def test_a_wide_residual_comes_out_in_the_type_of_the_weights() -> None:
    assert rms_norm(rand(2, 8).float(), torch.ones(8, dtype=torch.bfloat16), 1e-5).dtype == torch.bfloat16


def test_a_wide_weight_may_give_narrow_rows() -> None:
    weight = torch.full((8,), 1.001)
    got = rms_norm(rand(2, 8).bfloat16(), weight, 1e-5, None, torch.bfloat16)
    assert got.dtype == torch.bfloat16


def test_large_activations_do_not_overflow_in_half_precision() -> None:
    x = torch.full((1, 64), 60000.0, dtype=torch.float16)
    torch.testing.assert_close(rms_norm(x, torch.ones(64).half(), 1e-5), torch.ones(1, 64).half())


@pytest.mark.parametrize(("dtype", "tolerance"), KINDS)
@pytest.mark.parametrize("groups", [1, 4, 8])
def test_gated_norm_gates_first_and_norms_each_group(
    dtype: torch.dtype, tolerance: float, groups: int
) -> None:
    y, gate, weight = rand(7, 48), rand(7, 60, seed=1)[:, 6:54].to(dtype), rand(48, seed=2).to(dtype)
    gated = (y * F.silu(gate.double())).unflatten(1, (groups, -1))
    expected = (gated / (gated.square().mean(-1, keepdim=True) + 1e-5).sqrt()).flatten(1) * weight.double()
    before = gate.clone()
    got = gated_norm(
        y.to(torch.float64 if dtype == torch.float64 else torch.float32), gate, weight, 1e-5, groups
    )
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance)
    assert torch.equal(gate, before)


@pytest.mark.parametrize(("dtype", "tolerance"), KINDS)
@pytest.mark.parametrize("alike", [True, False])
def test_gated_norm_may_norm_each_group_first(dtype: torch.dtype, tolerance: float, alike: bool) -> None:
    y, gate = rand(7, 48).to(dtype), rand(7, 60, seed=1)[:, 6:54].to(dtype)
    weight = rand(12 if alike else 48, seed=2).to(dtype)
    parts = y.double().unflatten(1, (4, 12))
    normed = parts / (parts.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    factor = weight.double().view(-1, 12)
    expected = (normed * factor).flatten(1) * F.silu(gate.double())
    before = y.clone(), gate.clone()
    got = gated_norm(y, gate, weight, 1e-5, 4, norm_first=True)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance)
    assert torch.equal(y, before[0])
    assert torch.equal(gate, before[1])


def test_without_a_weight_only_the_gate_is_applied() -> None:
    y, gate = rand(3, 8), rand(3, 8, seed=1)
    torch.testing.assert_close(gated_norm(y, gate, None, 1e-5, 2), y * F.silu(gate))


def test_step_size_is_a_clamped_softplus() -> None:
    raw, bias = rand(9, 5) * 10, rand(5, seed=1)
    expected = F.softplus(raw + bias, threshold=1000).clamp(0.02, 4.0)
    torch.testing.assert_close(step_size(raw, bias, (0.02, 4.0), torch.float64), expected)


def test_step_size_neither_overflows_nor_vanishes() -> None:
    raw = torch.tensor([[-200.0, -30.0, 0.0, 30.0, 200.0]])
    got = step_size(raw, torch.zeros(5), (0.0, float("inf")), torch.float32)[0].tolist()
    assert got[0] == 0.0
    assert got[1] == pytest.approx(9.36e-14, rel=1e-2)
    assert got[2] == pytest.approx(0.693147, rel=1e-5)
    assert got[3:] == [30.0, 200.0]
