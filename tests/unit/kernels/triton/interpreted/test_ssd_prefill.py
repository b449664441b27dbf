"""The scan equals the reference in float64 for ragged pieces of one batch, checkpoints included."""

import numpy as np
import pytest
import torch

from mamba_kernels.ssd_prefill import reference
from mamba_kernels.ssd_prefill import triton as kernels
from mamba_kernels.ssd_prefill.triton import ssd_prefill
from mamba_kernels.stochastic_rounding import noise_words, round_to_float16_
from matrix_size import LARGE
from testmodels.chunks import Mixer, PiecePlan, chunk_plan, ints, poisoned, strided_cache
from triton_close import close, wide

LIMIT = (0.05, 2.0)
RAGGED = [
    PiecePlan(done=0, length=1, slot_in=-1, slot_out=3, checkpoints={}),
    PiecePlan(done=0, length=63, slot_in=-1, slot_out=4, checkpoints={16: 9, 50: 10, 63: 11}),
    PiecePlan(done=37, length=100, slot_in=5, slot_out=5, checkpoints={64: 12, 101: 13}),
    PiecePlan(done=64, length=257, slot_in=6, slot_out=7, checkpoints={320: 14}),
    PiecePlan(done=31, length=2, slot_in=6, slot_out=8, checkpoints={32: 15}),
]


def filled(mixer: Mixer, dtype: torch.dtype) -> torch.Tensor:
    state = strided_cache(16, mixer.H, mixer.P, mixer.N, dtype=dtype)
    for slot in (5, 6):
        g = torch.Generator().manual_seed(slot)
        state[slot] = torch.randn(mixer.H, mixer.P, mixer.N, generator=g).to(dtype)
    return state


@pytest.mark.parametrize(
    ("H", "G", "P", "N", "chunk_size", "kind", "stored"),
    [
        (2, 1, 5, 7, 64, torch.float32, torch.float32),
        (2, 2, 17, 63, 128, torch.bfloat16, torch.float32),
        (4, 2, 1, 100, 256, torch.float32, torch.float16),
        (1, 1, 80, 1, 16, torch.bfloat16, torch.float16),
    ][:: 1 if LARGE else 3],
)
def test_ragged_pieces_equal_the_reference(
    H: int, G: int, P: int, N: int, chunk_size: int, kind: torch.dtype, stored: torch.dtype
) -> None:
    plan = chunk_plan(RAGGED, chunk_size)
    mixer = Mixer(H=H, P=P, N=N, G=G, T=plan.tokens, dtype=kind)
    state, out = filled(mixer, stored), poisoned(mixer.T, H, P, dtype=torch.float32)
    truth, expected = state.double(), poisoned(mixer.T, H, P)
    before = state.clone()
    reference.ssd_prefill(truth, wide(mixer).inputs(LIMIT), plan, expected)
    ssd_prefill(state, mixer.inputs(LIMIT), plan, out)
    close(out, expected, sums=16)
    named = [piece.slot_out for piece in RAGGED] + plan.tracked_slot_list
    close(state[named], truth[named], sums=16)
    assert torch.equal(state[6], before[6]), "a checkpoint that is resumed from must not change"
    assert state[[0, 1, 2]].isnan().all(), "slots nobody named are left alone"


def test_float16_states_and_checkpoints_are_the_registers_rounded_by_their_depths() -> None:
    pieces = [RAGGED[1], RAGGED[4]]
    depths = np.concatenate([np.arange(each.done, each.done + each.length) + 1 for each in pieces])
    words = noise_words(ints(np.repeat([3, 4], [each.length for each in pieces])), ints(depths))
    plan = chunk_plan(pieces, 64, words)
    mixer = Mixer(H=2, P=5, N=7, G=1, T=plan.tokens, dtype=torch.float32)
    half = filled(mixer, torch.float16)
    exact, out = half.float(), poisoned(mixer.T, 2, 5, dtype=torch.float32)
    for state in (half, exact):
        ssd_prefill(state, mixer.inputs(LIMIT), plan, out)
    rows = {9: 15, 10: 49, 11: 62, 4: 62, 15: 63, 8: 64}
    registers = exact[list(rows)]
    round_to_float16_(registers, torch.from_numpy(words[list(rows.values())]))
    assert torch.equal(half[list(rows)].float(), registers)


def test_a_sequence_has_the_same_bits_alone_and_among_others_and_however_it_was_cut() -> None:
    together = chunk_plan(RAGGED[2:4], 64)
    mixer = Mixer(H=1, P=4, N=16, G=1, T=together.tokens, dtype=torch.float32)
    whole, cut = filled(mixer, torch.float32), filled(mixer, torch.float32)
    expected = torch.empty(mixer.T, 1, 4)
    ssd_prefill(whole, mixer.inputs(LIMIT), together, expected)
    for first, piece in [
        (0, PiecePlan(37, 27, 5, 5, {64: 12})),
        (27, PiecePlan(64, 73, 5, 5, {101: 13})),
        (100, PiecePlan(64, 192, 6, 7, {})),
        (292, PiecePlan(256, 65, 7, 7, {320: 14})),
    ]:
        rows = slice(first, first + piece.length)
        part = Mixer(H=1, P=4, N=16, G=1, T=piece.length, dtype=torch.float32)
        part.A, part.D, part.dt_bias = mixer.A, mixer.D, mixer.dt_bias
        part.x, part.dt, part.B, part.C = mixer.x[rows], mixer.dt[rows], mixer.B[rows], mixer.C[rows]
        out = torch.empty(piece.length, 1, 4)
        ssd_prefill(cut, part.inputs(LIMIT), chunk_plan([piece], 64), out)
        assert torch.equal(out, expected[rows])
    assert torch.equal(cut[[5, 7, 12, 13, 14]], whole[[5, 7, 12, 13, 14]])


def test_strong_decay_gives_no_nan() -> None:
    plan = chunk_plan([PiecePlan(0, 130, -1, 1, {})], 128)
    mixer = Mixer(H=2, P=3, N=4, G=1, T=130, dtype=torch.float32)
    mixer.A, mixer.dt_bias = torch.tensor([-6000.0, -1e-4]), torch.tensor([80.0, -30.0])
    state, out = filled(mixer, torch.float32), poisoned(130, 2, 3, dtype=torch.float32)
    truth, expected = state.double(), poisoned(130, 2, 3)
    unlimited = (0.0, float("inf"))
    reference.ssd_prefill(truth, wide(mixer).inputs(unlimited), plan, expected)
    ssd_prefill(state, mixer.inputs(unlimited), plan, out)
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(state[1].double(), truth[1], rtol=1e-4, atol=1e-4)


def test_slots_beyond_2_to_the_31_elements() -> None:
    plan = chunk_plan([PiecePlan(0, 3, 1, 1, {})], 64)
    mixer = Mixer(H=1, P=2, N=4, G=1, T=3, dtype=torch.float32)
    # Only the pages that are touched take memory.
    memory = torch.empty((1 << 31) + 16, dtype=torch.float16)
    state = memory.as_strided((2, 1, 2, 4), ((1 << 31) + 8, 8, 4, 1))
    state[1] = 1.0
    truth, out, expected = poisoned(2, 1, 2, 4), poisoned(3, 1, 2, dtype=torch.float32), poisoned(3, 1, 2)
    truth[1] = 1.0
    reference.ssd_prefill(truth, wide(mixer).inputs(LIMIT), plan, expected)
    ssd_prefill(state, mixer.inputs(LIMIT), plan, out)
    close(out, expected)
    close(state[1], truth[1])


LONG = [
    PiecePlan(done=37, length=430, slot_in=5, slot_out=5, checkpoints={64: 9, 301: 10}),
    PiecePlan(done=0, length=40, slot_in=-1, slot_out=3, checkpoints={40: 11}),
    PiecePlan(done=0, length=290, slot_in=-1, slot_out=4, checkpoints={}),
]


@pytest.mark.parametrize(
    ("processors", "counts"),
    [(2, [1, 1, 1]), (4, [2, 1, 2]), (6, [3, 1, 3]), (100, [7, 1, 4])][0 if LARGE else 3 :],
)
def test_long_pieces_in_segments_equal_the_reference(
    monkeypatch: pytest.MonkeyPatch, processors: int, counts: list[int]
) -> None:
    """A head is two programs here, and two of these run on a processor."""
    monkeypatch.setattr(kernels, "processors", lambda _: processors)
    plan = chunk_plan(LONG, 16)
    mixer = Mixer(H=2, P=17, N=20, G=1, T=plan.tokens, dtype=torch.float32)
    state, out = filled(mixer, torch.float32), poisoned(mixer.T, 2, 17, dtype=torch.float32)
    truth, expected = state.double(), poisoned(mixer.T, 2, 17)
    reference.ssd_prefill(truth, wide(mixer).inputs(LIMIT), plan, expected)
    ssd_prefill(state, mixer.inputs(LIMIT), plan, out)
    (segments,) = plan.cuts.values()
    cut = [1, 1, 1] if segments is None else segments.piece_segment.diff().tolist()
    assert cut == counts
    close(out, expected, sums=16)
    named = [piece.slot_out for piece in LONG] + plan.tracked_slot_list
    close(state[named], truth[named], sums=16)
    assert state[[0, 1, 2, 12]].isnan().all(), "slots nobody named are left alone"
