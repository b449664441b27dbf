"""The convolution equals the textbook one per sequence; every window is the raw inputs up to its depth."""

import pytest
import torch
import torch.nn.functional as F

from mamba_kernels.conv1d_prefill import conv1d_prefill
from mamba_kernels.conv1d_update import conv1d_update
from mamba_kernels.slot_plan import SlotPlan
from testmodels.chunks import CPU, PiecePlan, chunk_plan, ints, strided_cache
from testmodels.no_sync import no_sync

CHANNELS = 11


def textbook(
    inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, past: torch.Tensor
) -> torch.Tensor:
    """Return silu(conv1d) of one sequence with its K-1 inputs before."""
    whole = torch.cat([past, inputs]).t()[None]
    return F.silu(F.conv1d(whole, weight.t()[:, None], bias, groups=CHANNELS))[0].t()


def data(rows: int, K: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(rows + K)
    x = torch.randn(rows, CHANNELS + 5, generator=g, dtype=torch.float64)[:, 2:-3].to(dtype)
    weight = torch.randn(K, CHANNELS, generator=g, dtype=torch.float64).to(dtype)
    return x, weight, torch.randn(CHANNELS, generator=g, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("K", [2, 4, 5])
@pytest.mark.parametrize("biased", [True, False])
def test_ragged_pieces_equal_the_textbook_and_leave_raw_windows(K: int, biased: bool) -> None:
    pieces = [
        PiecePlan(0, 1, -1, 1, {}),
        PiecePlan(0, 2, -1, 2, {1: 10}),
        PiecePlan(40, 1, 3, 3, {41: 11}),
        PiecePlan(30, 100, 4, 5, {31: 12, 32: 13, 64: 14, 130: 15}),
        PiecePlan(9, 257, 4, 6, {128: 16}),
    ]
    x, weight, bias = data(sum(piece.length for piece in pieces), K)
    window = strided_cache(20, K - 1, CHANNELS)
    window[3], window[4] = torch.randn(K - 1, CHANNELS).double(), torch.randn(K - 1, CHANNELS).double()
    before = window.clone()
    plan = chunk_plan(pieces, 64)
    with no_sync():
        out = conv1d_prefill(x, weight, bias if biased else None, window, plan)
    first = 0
    for piece in pieces:
        rows = x[first : first + piece.length]
        past = torch.zeros(K - 1, CHANNELS).double() if piece.slot_in < 0 else before[piece.slot_in]
        expected = textbook(rows, weight, bias if biased else None, past)
        torch.testing.assert_close(out[first : first + piece.length], expected, rtol=1e-12, atol=1e-12)
        history = torch.cat([past, rows])
        for depth, slot in [*piece.checkpoints.items(), (piece.done + piece.length, piece.slot_out)]:
            end = depth - piece.done
            assert torch.equal(window[slot], history[end : end + K - 1]), f"depth {depth}"
        first += piece.length
    assert torch.equal(window[4], before[4]), "a checkpoint that is resumed from must not change"
    assert window[[0, 7, 8, 9]].isnan().all(), "slots nobody named are left alone"


def test_single_tokens_continue_a_prefill_bit_for_bit() -> None:
    x, weight, bias = data(40, 4, torch.float32)
    whole, stepwise = (strided_cache(4, 3, CHANNELS, dtype=torch.float32) for _ in range(2))
    expected = conv1d_prefill(x, weight, bias, whole, chunk_plan([PiecePlan(0, 40, -1, 1, {})], 16))
    rows = []
    for t in range(40):
        source = -1 if t == 0 else 1
        plan = SlotPlan.build(ints([source]), ints([1]), ints([-1]), CPU)
        rows.append(conv1d_update(x[t : t + 1], weight, bias, stepwise, plan))
    torch.testing.assert_close(torch.cat(rows), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(whole[1], stepwise[1])


def test_update_moves_tracks_and_starts_from_zero() -> None:
    x, weight, bias = data(4, 4)
    window = strided_cache(9, 3, CHANNELS)
    window[1], window[2], window[3] = (torch.randn(3, CHANNELS).double() for _ in range(3))
    before = window.clone()
    plan = SlotPlan.build(ints([1, 2, -1, 3]), ints([1, 5, 6, 3]), ints([-1, 7, -1, 8]), CPU)
    with no_sync():
        out = conv1d_update(x, weight, bias, window, plan)
    for row, (source, target, track) in enumerate([(1, 1, -1), (2, 5, 7), (-1, 6, -1), (3, 3, 8)]):
        past = torch.zeros(3, CHANNELS).double() if source < 0 else before[source]
        torch.testing.assert_close(out[row : row + 1], textbook(x[row : row + 1], weight, bias, past))
        expected = torch.cat([past[1:], x[row : row + 1]])
        assert torch.equal(window[target], expected)
        if track >= 0:
            assert torch.equal(window[track], expected)
    assert torch.equal(window[2], before[2])
    assert window[[0, 4]].isnan().all()


def test_a_batch_without_fresh_or_tracked_rows_needs_neither_mask_nor_copy() -> None:
    plan = SlotPlan.build(ints([1, 2]), ints([1, 2]), ints([-1, -1]), CPU)
    assert plan.fresh is None
    assert plan.tracked is None
