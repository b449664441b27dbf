"""The delta rule on Triton equals the reference in float64: ragged pieces, decodes, checkpoints."""

import pytest
import torch

from mamba_kernels.gated_delta import reference
from mamba_kernels.gated_delta.triton import gated_delta_prefill, gated_delta_update
from mamba_kernels.slot_plan import SlotPlan
from matrix_size import LARGE
from testmodels.chunks import CPU, PiecePlan, chunk_plan, ints, poisoned, strided_cache
from testmodels.delta import Delta
from triton_close import close

RAGGED = [
    PiecePlan(done=0, length=1, slot_in=-1, slot_out=3, checkpoints={}),
    PiecePlan(done=0, length=63, slot_in=-1, slot_out=4, checkpoints={16: 9, 50: 10, 63: 11}),
    PiecePlan(done=37, length=100, slot_in=5, slot_out=5, checkpoints={64: 12, 101: 13}),
    PiecePlan(done=64, length=130, slot_in=6, slot_out=7, checkpoints={190: 14}),
]
ROUTES = [(5, 5, -1), (6, 7, 8), (-1, 9, 10), (6, 12, -1), (-1, -1, -1)]
"""In place, moved and tracked, from zero, moved, padding."""
SHAPES = [
    (2, 1, 17, 16, torch.float32, torch.float32, False),
    (2, 2, 16, 33, torch.bfloat16, torch.float32, False),
    (4, 2, 5, 7, torch.float32, torch.float16, False),
    (1, 1, 6, 7, torch.float32, torch.float32, True),
]
"""Heads and widths, types of rows and of states, and whether each channel of a key has a decay."""
FEW_SHAPES = SHAPES if LARGE else SHAPES[1:]
"""Shapes of the pieces, which take the interpreter a second each."""


def filled(rows: Delta, dtype: torch.dtype) -> torch.Tensor:
    state = strided_cache(16, rows.H, rows.V, rows.K, dtype=dtype)
    for slot in (5, 6):
        g = torch.Generator().manual_seed(slot)
        state[slot] = (torch.randn(rows.H, rows.V, rows.K, generator=g) / 4).to(dtype)
    return state


def plan(routes: list[tuple[int, int, int]]) -> SlotPlan:
    return SlotPlan.build(*(ints(each) for each in zip(*routes, strict=True)), CPU)


@pytest.mark.parametrize(("H", "G", "V", "K", "kind", "stored", "by_channel"), FEW_SHAPES)
def test_ragged_pieces_equal_the_reference(
    H: int, G: int, V: int, K: int, kind: torch.dtype, stored: torch.dtype, by_channel: bool
) -> None:
    made = chunk_plan(RAGGED, 64)
    rows = Delta(H, G, V, K, made.tokens, kind, by_channel=by_channel)
    state, out = filled(rows, stored), poisoned(rows.T, H, V, dtype=torch.float32)
    truth, expected = state.double(), poisoned(rows.T, H, V)
    before = state.clone()
    reference.gated_delta_prefill(truth, rows.wide().inputs, made, expected)
    gated_delta_prefill(state, rows.inputs, made, out)
    close(out, expected, sums=64)
    named = [piece.slot_out for piece in RAGGED] + made.tracked_slot_list
    close(state[named], truth[named], sums=64)
    assert torch.equal(state[6], before[6]), "a checkpoint that is resumed from must not change"
    assert state[[0, 1, 2, 8, 15]].isnan().all(), "slots nobody named are left alone"


@pytest.mark.parametrize(("H", "G", "V", "K", "kind", "stored", "by_channel"), SHAPES)
def test_decodes_equal_the_reference(
    H: int, G: int, V: int, K: int, kind: torch.dtype, stored: torch.dtype, by_channel: bool
) -> None:
    rows = Delta(H, G, V, K, len(ROUTES), kind, by_channel=by_channel)
    state, out = filled(rows, stored), poisoned(rows.T, H, V, dtype=torch.float32)
    truth, expected = state.double(), poisoned(rows.T - 1, H, V)
    reference.gated_delta_update(truth, rows.wide().part(slice(4)).inputs, plan(ROUTES[:4]), expected)
    gated_delta_update(state, rows.inputs, plan(ROUTES), out)
    close(out[:4], expected)
    assert out.isfinite().all()
    for _, target, track in ROUTES[:4]:
        close(state[target], truth[target])
        assert track < 0 or torch.equal(state[track], state[target]), "state and checkpoint cannot disagree"
    assert state[[0, 1, 2, 3, 4, 11, 13, 14, 15]].isnan().all(), "slots nobody named are left alone"


def test_a_sequence_has_the_same_bits_alone_and_among_others_and_however_it_was_cut() -> None:
    made = chunk_plan([RAGGED[2], RAGGED[3]], 64)
    rows = Delta(1, 1, 4, 16, made.tokens, torch.float32)
    whole, cut = filled(rows, torch.float32), filled(rows, torch.float32)
    expected = torch.empty(rows.T, 1, 4)
    gated_delta_prefill(whole, rows.inputs, made, expected)
    for first, piece in [
        (0, PiecePlan(37, 27, 5, 5, {64: 12})),
        (27, PiecePlan(64, 73, 5, 5, {101: 13})),
        (100, PiecePlan(64, 130, 6, 7, {190: 14})),
    ]:
        some = slice(first, first + piece.length)
        out = torch.empty(piece.length, 1, 4)
        gated_delta_prefill(cut, rows.part(some).inputs, chunk_plan([piece], 64), out)
        assert torch.equal(out, expected[some])
    assert torch.equal(cut[[5, 7, 12, 13, 14]], whole[[5, 7, 12, 13, 14]])


def test_keys_that_are_all_the_same_are_solved_for() -> None:
    rows = Delta(1, 1, 4, 16, 64, torch.float32)
    rows.mixed[:, 16:32] = 1.0
    rows.gates[:, 1] = 40.0
    rows.A[:] = -1e-9
    made = chunk_plan([PiecePlan(0, 64, -1, 1, {})], 64)
    state, out = filled(rows, torch.float32), poisoned(64, 1, 4, dtype=torch.float32)
    truth, expected = state.double(), poisoned(64, 1, 4)
    reference.gated_delta_prefill(truth, rows.wide().inputs, made, expected)
    gated_delta_prefill(state, rows.inputs, made, out)
    close(out, expected, sums=64)
    close(state[1], truth[1], sums=64)


def test_slots_beyond_2_to_the_31_elements() -> None:
    rows = Delta(1, 1, 2, 4, 1, torch.float32)
    # Only the pages that are touched take memory.
    memory = torch.empty((1 << 31) + 16, dtype=torch.float16)
    state = memory.as_strided((2, 1, 2, 4), ((1 << 31) + 8, 8, 4, 1))
    state[1] = 0.5
    truth, out, expected = poisoned(2, 1, 2, 4), poisoned(1, 1, 2, dtype=torch.float32), poisoned(1, 1, 2)
    truth[1] = 0.5
    reference.gated_delta_update(truth, rows.wide().inputs, plan([(1, 1, -1)]), expected)
    gated_delta_update(state, rows.inputs, plan([(1, 1, -1)]), out)
    close(out, expected)
    close(state[1], truth[1])
