"""Prompts in one call equal the operators it joins, computed in float64, with every checkpoint."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from mamba_kernels.conv1d_prefill import conv1d_prefill
from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.mamba_prefill import MambaPrefiller
from mamba_kernels.gated_norm import gated_norm
from mamba_kernels.slot_plan import IntArray
from mamba_kernels.ssd_prefill import ssd_prefill
from mamba_kernels.stochastic_rounding import noise_words, round_to_float16_
from testmodels.chunks import PiecePlan, chunk_plan, ints, poisoned
from testmodels.mixers import EPS, SIZES, TYPES, MixerRows, Sizes

RAGGED = [
    PiecePlan(done=0, length=1, slot_in=-1, slot_out=5, checkpoints={}),
    PiecePlan(done=0, length=63, slot_in=-1, slot_out=6, checkpoints={2: 7, 16: 8}),
    PiecePlan(done=37, length=100, slot_in=1, slot_out=1, checkpoints={64: 9, 101: 10}),
    PiecePlan(done=64, length=41, slot_in=2, slot_out=11, checkpoints={65: 12}),
    PiecePlan(done=31, length=2, slot_in=3, slot_out=3, checkpoints={32: 13}),
]
"""From zero, in place and moved; a piece and a checkpoint shorter than a window."""
CHUNK = 16
TOTAL = sum(piece.length for piece in RAGGED)


def noise(pieces: list[PiecePlan]) -> IntArray:
    """Return a seed for each sequence, named by its destination slot."""
    depths = [np.arange(each.done + 1, each.done + each.length + 1) for each in pieces]
    seeds = [np.full(each.length, each.slot_out) for each in pieces]
    return noise_words(ints(np.concatenate(seeds)), ints(np.concatenate(depths)))


def prefill(
    mixer: MixerRows, library: Library, pieces: list[PiecePlan], rows: slice = slice(None), chunk: int = CHUNK
) -> torch.Tensor:
    H, P = mixer.sizes[:2]
    projected = mixer.projected[rows]
    out = poisoned(len(projected), H * P, dtype=projected.dtype)
    call = MambaPrefiller(library, mixer.prepared())
    plan = chunk_plan(pieces, chunk, noise(pieces))
    call(projected, mixer.window, mixer.state, plan, out)
    return out


def expected(mixer: MixerRows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the output, windows and states by the operators in float64."""
    H, P, _, G = mixer.sizes
    window, state, plan = mixer.window.double(), mixer.state.double(), chunk_plan(RAGGED, CHUNK)
    gate, inputs, dt = mixer.parts()
    mixed = conv1d_prefill(inputs, mixer.weights.conv_weight.double(), mixer.conv_bias(), window, plan)
    y = torch.empty(TOTAL, H, P, dtype=torch.float64)
    ssd_prefill(state, mixer.scan(mixed, dt), plan, y)
    return gated_norm(y.flatten(1), gate, mixer.norm_weight(), EPS, G), window, state


def wide(stored: torch.dtype = torch.float32) -> MixerRows:
    return MixerRows(TOTAL, (48, 32, 128, 1, 4), torch.bfloat16, stored, norm=True)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(("dtype", "state", "tolerance", "state_tolerance"), TYPES)
@pytest.mark.parametrize("sizes", SIZES)
def test_pieces_equal_convolution_scan_and_norm(
    library: Library, sizes: Sizes, dtype: torch.dtype, state: torch.dtype, tolerance: float,
    state_tolerance: float, norm: bool,
) -> None:  # fmt: skip
    mixer = MixerRows(TOTAL, sizes, dtype, state, norm=norm)
    output, window, states = expected(mixer)
    before = mixer.state.clone()
    out = prefill(mixer, library, RAGGED).double()
    # Without the norm the output is as large as its terms, of which some cancel.
    scale = max(1.0, float(output.abs().max())) if not norm else 4.0
    torch.testing.assert_close(out, output, rtol=tolerance, atol=tolerance * scale)
    assert torch.equal(mixer.window.double().nan_to_num(7), window.nan_to_num(7))
    torch.testing.assert_close(
        mixer.state.double(), states, rtol=state_tolerance, atol=state_tolerance * 4, equal_nan=True
    )
    assert torch.equal(mixer.state[2], before[2]), "a moved state leaves its source alone"
    assert mixer.state[[0]].isnan().all(), "slots nobody named are left alone"


@pytest.mark.parametrize(
    ("chunk", "stored"), [(16, torch.float32), (64, torch.float32), (100, torch.float32), (64, torch.float16)]
)
def test_a_piece_has_the_same_bits_alone_among_others_and_on_any_number_of_threads(
    library: Library, threads: int, chunk: int, stored: torch.dtype
) -> None:
    together, alone, first = wide(stored), wide(stored), 0
    library.set_threads(threads)
    out = prefill(together, library, RAGGED, chunk=chunk)
    library.set_threads(1)
    for piece in RAGGED:
        rows = slice(first, first + piece.length)
        assert torch.equal(prefill(alone, library, [piece], rows, chunk), out[rows])
        first = rows.stop
    assert torch.equal(alone.state.nan_to_num(7), together.state.nan_to_num(7))
    assert torch.equal(alone.window.nan_to_num(7), together.window.nan_to_num(7))


def test_a_state_is_the_same_however_a_prompt_was_cut_into_pieces(library: Library) -> None:
    whole, cut = wide(), wide()
    out = prefill(whole, library, [PiecePlan(0, 200, -1, 1, {64: 5, 160: 6})], slice(0, 200))
    pieces = [
        PiecePlan(0, 64, -1, 1, {64: 5}),
        PiecePlan(64, 96, 1, 1, {160: 6}),
        PiecePlan(160, 40, 6, 1, {}),
    ]
    first, parts = 0, []
    for piece in pieces:
        parts.append(prefill(cut, library, [piece], slice(first, first + piece.length)))
        first += piece.length
    assert torch.equal(torch.cat(parts), out)
    assert torch.equal(whole.state.nan_to_num(7), cut.state.nan_to_num(7))
    assert torch.equal(whole.window.nan_to_num(7), cut.window.nan_to_num(7))


def test_a_state_that_is_not_a_number_shows_in_its_own_piece_alone(library: Library) -> None:
    mixer = wide()
    mixer.state[2, 3, 31, 127] = torch.nan
    spoilt = prefill(mixer, library, RAGGED).isnan().any(1).tolist()
    lengths = [piece.length for piece in RAGGED]
    assert spoilt == [piece == 3 for piece, length in enumerate(lengths) for _ in range(length)]


def test_strong_decay_over_a_long_chunk_gives_numbers(library: Library) -> None:
    mixer = wide()
    mixer.weights.A.fill_(-60.0)
    mixer.weights.dt_bias.fill_(8.0)
    assert prefill(mixer, library, [PiecePlan(0, TOTAL, -1, 1, {})], chunk=128).isfinite().all()
    assert mixer.state[1].isfinite().all()


@pytest.mark.parametrize(("dtype", "state"), [kinds[:2] for kinds in TYPES])
@pytest.mark.parametrize("sizes", SIZES)
def test_every_instruction_set_gives_the_same_bits(
    assert_same_bits: Callable[..., None], sizes: Sizes, dtype: torch.dtype, state: torch.dtype
) -> None:
    def run(library: Library) -> tuple[torch.Tensor, ...]:
        mixer = MixerRows(TOTAL, sizes, dtype, state, norm=True)
        return prefill(mixer, library, RAGGED), mixer.window, mixer.state

    assert_same_bits(run)


@pytest.mark.parametrize("sizes", SIZES)
def test_float16_states_and_checkpoints_are_the_registers_rounded_by_their_depths(
    library: Library, sizes: Sizes
) -> None:
    half = MixerRows(TOTAL, sizes, torch.float32, torch.float16, norm=True)
    exact = MixerRows(TOTAL, sizes, torch.float32, torch.float32, norm=True)
    exact.state.copy_(half.state)
    assert torch.equal(prefill(half, library, RAGGED), prefill(exact, library, RAGGED))
    words, first = torch.from_numpy(noise(RAGGED)), 0
    for piece in RAGGED:
        for depth, slot in [*piece.checkpoints.items(), (piece.done + piece.length, piece.slot_out)]:
            row = first + depth - piece.done - 1
            registers = exact.state[slot][None].clone()
            round_to_float16_(registers, words[row : row + 1])
            assert torch.equal(half.state[slot].float(), registers[0]), (depth, slot)
        first += piece.length
