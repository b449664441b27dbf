"""The gated short convolution equals the reference for ragged pieces and decodes; windows too."""

import pytest
import torch

from mamba_kernels.short_conv import reference
from mamba_kernels.short_conv.triton import short_conv_prefill, short_conv_update
from mamba_kernels.slot_plan import SlotPlan
from matrix_size import LARGE
from testmodels.chunks import CPU, PiecePlan, chunk_plan, ints
from testmodels.short_conv import ShortConvRows
from triton_close import close

PIECES = [
    PiecePlan(0, 1, -1, 1, {}),
    PiecePlan(40, 1, 3, 3, {41: 11}),
    PiecePlan(30, 100, 4, 5, {31: 12, 32: 13, 64: 14, 130: 15}),
    PiecePlan(62, 7, 7, 7, {63: 16, 65: 17, 66: 18}),
]
SLOTS = SlotPlan.build(ints([1, 2, -1, 3]), ints([1, 5, 6, 3]), ints([-1, 9, -1, 8]), CPU)
SIZES = [(1, 3, torch.float32, True), (63, 2, torch.bfloat16, False), (257, 3, torch.bfloat16, True)]
"""Channels, taps, type, and whether there is a bias."""


def same_windows(ours: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare windows; the interpreter rounds products to bfloat16 towards zero, devices to the nearest."""
    tolerance = 2**-7 if ours.dtype == torch.bfloat16 else 0
    torch.testing.assert_close(ours, expected, rtol=tolerance, atol=0, equal_nan=True)


@pytest.mark.parametrize(("channels", "taps", "kind", "biased"), SIZES if LARGE else SIZES[:2])
def test_ragged_pieces_equal_the_reference(channels: int, taps: int, kind: torch.dtype, biased: bool) -> None:
    plan = chunk_plan(PIECES, 64)
    mixer = ShortConvRows(plan.tokens, channels=channels, taps=taps, dtype=kind, biased=biased)
    window = mixer.window.clone()
    expected = reference.short_conv_prefill(mixer.rows, mixer.weight, mixer.bias, window, plan)
    out = short_conv_prefill(mixer.rows, mixer.weight, mixer.bias, mixer.window, plan)
    assert out.dtype == kind
    close(out, expected.double())
    same_windows(mixer.window, window)


@pytest.mark.parametrize(("channels", "taps", "kind", "biased"), SIZES)
def test_decodes_equal_the_reference(channels: int, taps: int, kind: torch.dtype, biased: bool) -> None:
    mixer = ShortConvRows(4, channels=channels, taps=taps, dtype=kind, biased=biased)
    window = mixer.window.clone()
    expected = reference.short_conv_update(mixer.rows, mixer.weight, mixer.bias, window, SLOTS)
    out = short_conv_update(mixer.rows, mixer.weight, mixer.bias, mixer.window, SLOTS)
    close(out, expected.double())
    same_windows(mixer.window, window)
