"""The chunked scan equals the token-by-token recurrence of each sequence alone, checkpoints included."""

import pytest
import torch

from mamba_kernels.ssd_prefill import ssd_prefill, ssd_sequential
from testmodels.chunks import Mixer, PiecePlan, chunk_plan, poisoned, strided_cache
from testmodels.no_sync import no_sync

LIMIT = (0.05, 2.0)

RAGGED = [
    PiecePlan(done=0, length=1, slot_in=-1, slot_out=3, checkpoints={}),
    PiecePlan(done=0, length=63, slot_in=-1, slot_out=4, checkpoints={16: 9, 50: 10, 63: 11}),
    PiecePlan(done=37, length=100, slot_in=5, slot_out=5, checkpoints={64: 12, 101: 13}),
    PiecePlan(done=64, length=257, slot_in=6, slot_out=7, checkpoints={320: 14}),
    PiecePlan(done=31, length=2, slot_in=6, slot_out=8, checkpoints={32: 15}),
]


def run(mixer: Mixer, pieces: list[PiecePlan], chunk_size: int, state: torch.Tensor) -> torch.Tensor:
    out = poisoned(mixer.T, mixer.H, mixer.P, dtype=mixer.dtype)
    plan = chunk_plan(pieces, chunk_size)
    with no_sync():
        ssd_prefill(state, mixer.inputs(LIMIT), plan, out)
    return out


def truth(
    mixer: Mixer, pieces: list[PiecePlan], before: torch.Tensor
) -> list[tuple[slice, torch.Tensor, torch.Tensor]]:
    """Return (rows, outputs, state after each token) of each piece, each sequence by itself."""
    result, first = [], 0
    for piece in pieces:
        rows = slice(first, first + piece.length)
        initial = None if piece.slot_in < 0 else before[piece.slot_in]
        outputs, states = ssd_sequential(
            mixer.x[rows], mixer.dt[rows], mixer.A, mixer.B[rows], mixer.C[rows], mixer.D, mixer.dt_bias,
            LIMIT, initial,
        )  # fmt: skip
        result.append((rows, outputs, states))
        first = rows.stop
    return result


def filled(mixer: Mixer, slots: tuple[int, ...], dtype: torch.dtype = torch.float64) -> torch.Tensor:
    state = strided_cache(16, mixer.H, mixer.P, mixer.N, dtype=dtype)
    for slot in slots:
        state[slot] = torch.randn(
            mixer.H, mixer.P, mixer.N, generator=torch.Generator().manual_seed(slot), dtype=torch.float64
        ).to(dtype)
    return state


@pytest.mark.parametrize("chunk_size", [16, 64, 128])
@pytest.mark.parametrize(("H", "G"), [(4, 1), (8, 8), (6, 2)])
def test_ragged_pieces_equal_the_recurrence_of_their_own_sequence(chunk_size: int, H: int, G: int) -> None:
    mixer = Mixer(H=H, P=5, N=7, G=G, T=sum(piece.length for piece in RAGGED))
    state = filled(mixer, (5, 6))
    expected = truth(mixer, RAGGED, state.clone())
    out = run(mixer, RAGGED, chunk_size, state)
    for piece, (rows, outputs, states) in zip(RAGGED, expected, strict=True):
        torch.testing.assert_close(out[rows], outputs, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(state[piece.slot_out], states[-1], rtol=1e-9, atol=1e-9)
        for depth, slot in piece.checkpoints.items():
            torch.testing.assert_close(state[slot], states[depth - piece.done - 1], rtol=1e-9, atol=1e-9)


def test_slots_nobody_named_are_left_alone() -> None:
    mixer = Mixer(H=4, P=5, N=7, G=1, T=sum(piece.length for piece in RAGGED))
    state = filled(mixer, (5, 6))
    source = state[6].clone()
    run(mixer, RAGGED, 64, state)
    assert torch.equal(state[6], source), "a checkpoint that is resumed from must not change"
    assert state[[0, 1, 2]].isnan().all()


def test_a_checkpoint_is_the_same_whether_it_ends_a_piece_or_lies_inside() -> None:
    mixer = Mixer(H=4, P=4, N=8, G=2, T=128, dtype=torch.float32)
    whole, halves = filled(mixer, (), torch.float32), filled(mixer, (), torch.float32)
    out = run(mixer, [PiecePlan(0, 128, -1, 1, {64: 2})], 32, whole)
    first = Mixer(H=4, P=4, N=8, G=2, T=128, dtype=torch.float32)
    outs = []
    for done, slot_in in ((0, -1), (64, 1)):
        part = Mixer(H=4, P=4, N=8, G=2, T=64, dtype=torch.float32)
        part.A, part.D, part.dt_bias = first.A, first.D, first.dt_bias
        rows = slice(done, done + 64)
        part.x, part.dt, part.B, part.C = first.x[rows], first.dt[rows], first.B[rows], first.C[rows]
        outs.append(run(part, [PiecePlan(done, 64, slot_in, 1, {})], 32, halves))
        if done == 0:
            assert torch.equal(whole[2], halves[1])
    assert torch.equal(out, torch.cat(outs))
    assert torch.equal(whole[1], halves[1])


def test_a_sequence_has_the_same_bits_alone_and_among_others() -> None:
    mixer = Mixer(H=4, P=8, N=16, G=2, T=sum(piece.length for piece in RAGGED), dtype=torch.float32)
    state = filled(mixer, (5, 6), torch.float32)
    alone = state.clone()
    out = run(mixer, RAGGED, 32, state)
    first = 0
    for piece in RAGGED:
        rows = slice(first, first + piece.length)
        single = Mixer(H=4, P=8, N=16, G=2, T=piece.length, dtype=torch.float32)
        single.A, single.D, single.dt_bias = mixer.A, mixer.D, mixer.dt_bias
        single.x, single.dt, single.B, single.C = mixer.x[rows], mixer.dt[rows], mixer.B[rows], mixer.C[rows]
        assert torch.equal(run(single, [piece], 32, alone), out[rows])
        assert torch.equal(alone[piece.slot_out], state[piece.slot_out])
        first = rows.stop


def test_strong_decay_over_a_long_chunk_gives_no_nan() -> None:
    mixer = Mixer(H=2, P=3, N=4, G=1, T=256, dtype=torch.float32)
    mixer.A = torch.tensor([-60.0, -1e-4])
    mixer.dt_bias = torch.full((2,), 8.0)
    state = filled(mixer, (), torch.float32)
    piece = PiecePlan(0, 256, -1, 1, {})
    out = run(mixer, [piece], 128, state)
    outputs, states = ssd_sequential(
        *(t.double() for t in (mixer.x, mixer.dt, mixer.A, mixer.B, mixer.C, mixer.D, mixer.dt_bias)), LIMIT
    )
    torch.testing.assert_close(out.double(), outputs, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(state[1].double(), states[-1], rtol=1e-4, atol=1e-3)


def test_narrow_activations_are_summed_in_float32() -> None:
    mixer = Mixer(H=4, P=8, N=16, G=1, T=200, dtype=torch.float32)
    narrow = Mixer(H=4, P=8, N=16, G=1, T=200, dtype=torch.bfloat16)
    for name in ("A", "D", "dt_bias"):
        setattr(narrow, name, getattr(mixer, name))
    wide = Mixer(H=4, P=8, N=16, G=1, T=200)
    for name in ("x", "dt", "B", "C"):
        setattr(wide, name, getattr(narrow, name).double())
    for name in ("A", "D", "dt_bias"):
        setattr(wide, name, getattr(mixer, name).double())
    piece = [PiecePlan(0, 200, -1, 1, {})]
    state, exact = filled(narrow, (), torch.float32), filled(wide, ())
    run(narrow, piece, 64, state)
    run(wide, piece, 64, exact)
    torch.testing.assert_close(state[1].double(), exact[1], rtol=1e-5, atol=1e-5)
