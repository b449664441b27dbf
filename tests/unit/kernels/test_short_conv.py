"""The gated short convolution of transformers, of whole texts and of their tokens one by one."""

import torch
import torch.nn.functional as F

from mamba_kernels.short_conv import short_conv_prefill, short_conv_update
from mamba_kernels.slot_plan import SlotPlan
from testmodels.chunks import CPU, PiecePlan, chunk_plan, ints
from testmodels.short_conv import SLOTS, ShortConvRows

LENGTH = 70


def test_a_text_is_convolved_between_its_gates_whole_in_pieces_and_token_by_token() -> None:
    rows = ShortConvRows(LENGTH, channels=6, taps=3, dtype=torch.float64)
    b, c, x = rows.rows.chunk(3, 1)
    padded = F.pad((b * x).t()[None], (2, 0))
    expected = c * F.conv1d(padded, rows.weight.t()[:, None].double(), rows.bias.double(), groups=6)[0].t()

    whole = rows.window.clone()
    plan = chunk_plan([PiecePlan(0, LENGTH, -1, 5, {64: 6})], 64)
    torch.testing.assert_close(
        short_conv_prefill(rows.rows, rows.weight, rows.bias, whole, plan), expected, rtol=1e-6, atol=1e-6
    )
    torch.testing.assert_close(whole[5], (b * x)[-2:], rtol=0, atol=0)
    torch.testing.assert_close(whole[6], (b * x)[62:64], rtol=0, atol=0)

    stepped, got = rows.window.clone(), []
    for t in range(LENGTH):
        slots = SlotPlan.build(*(ints([each]) for each in (5 if t else -1, 5, 6 if t == 63 else -1)), CPU)
        got.append(short_conv_update(rows.rows[t : t + 1], rows.weight, rows.bias, stepped, slots))
    torch.testing.assert_close(torch.cat(got), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(stepped[[5, 6]], whole[[5, 6]], rtol=0, atol=0)


def test_a_piece_shorter_than_the_window_keeps_the_end_of_the_one_before() -> None:
    rows = ShortConvRows(1, channels=6, taps=4, dtype=torch.float64)
    window = rows.window.clone()
    plan = chunk_plan([PiecePlan(9, 1, 1, 2, {})], 64)
    short_conv_prefill(rows.rows, rows.weight, rows.bias, window, plan)
    b, _, x = rows.rows.chunk(3, 1)
    assert torch.equal(window[2], torch.cat([rows.window[1, 1:], b * x]))
    assert len(window) == SLOTS
