"""Rotary positions turn pairs of a head by angles that grow with the position."""

import math

import pytest
import torch

from mamba_kernels.rope import frequencies, rope, turns

CPU = torch.device("cpu")


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 2e-3), (torch.bfloat16, 2e-2)])
def test_each_pair_is_a_complex_number_times_its_turn(dtype: torch.dtype, tolerance: float) -> None:
    positions = torch.tensor([0, 1, 77, 5000], dtype=torch.int32)
    x = torch.randn(4, 3, 10, generator=torch.Generator().manual_seed(1)).to(dtype)
    before = x.double().clone()
    rope(x, *turns(positions, frequencies(10_000.0, 6, CPU)))
    angles = positions.double()[:, None] * torch.tensor([10_000.0 ** (-i / 3) for i in range(3)]).double()
    turned = torch.complex(before[..., :3], before[..., 3:6]) * torch.exp(1j * angles)[:, None]
    expected = torch.cat([turned.real, turned.imag, before[..., 6:]], -1)
    torch.testing.assert_close(x.double(), expected, rtol=0, atol=tolerance)


def test_what_two_rows_have_in_common_depends_on_their_distance_alone() -> None:
    query, key = torch.randn(2, 1, 1, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    steps = frequencies(100.0, 8, CPU)

    def product(at: int, other: int) -> float:
        turned = query.clone(), key.clone()
        for x, position in zip(turned, (at, other), strict=True):
            rope(x, *turns(torch.tensor([position]), steps))
        return float((turned[0] * turned[1]).sum())

    assert math.isclose(product(3, 40), product(103, 140), rel_tol=1e-4)
    assert not math.isclose(product(3, 40), product(3, 41), rel_tol=1e-2)


def test_turns_have_the_same_bits_at_any_place() -> None:
    steps = frequencies(10_000.0, 34, CPU)
    positions = torch.arange(0, 100_000, 311, dtype=torch.int32)
    whole = turns(positions, steps)
    for row in range(0, len(positions), 29):
        for part, together in zip(turns(positions[row : row + 1], steps), whole, strict=True):
            assert torch.equal(part[0], together[row])
