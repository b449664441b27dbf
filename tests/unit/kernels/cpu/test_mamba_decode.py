"""Decoding in one call equals the operators it joins, computed in float64, wherever states lie."""

from collections.abc import Callable

import pytest
import torch

from mamba_kernels.conv1d_update import conv1d_update
from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.mamba_decode import MambaDecoder
from mamba_kernels.gated_norm import gated_norm
from mamba_kernels.slot_plan import IntArray, SlotPlan
from mamba_kernels.state_update import state_update
from mamba_kernels.stochastic_rounding import noise_words, round_to_float16_
from testmodels.chunks import CPU, ints
from testmodels.mixers import EPS, LIMIT, SIZES, TYPES, MixerRows, Sizes

ROUTES = [(1, 1, -1), (2, 7, 8), (-1, 9, 10), (4, 4, 11), (3, 12, -1)]
"""(slot_in, slot_out, track): in place, moved and tracked, from zero, in place and tracked, moved."""


NOISE = noise_words(ints([5, 6, 7, 8, 9]), ints([100, 101, 1, 3, 70000]))


def decode(mixer: MixerRows, library: Library, rows: slice = slice(None)) -> torch.Tensor:
    H, P = mixer.sizes[:2]
    routes = ROUTES[rows]
    out = torch.full((len(routes), H * P), torch.nan, dtype=mixer.projected.dtype)
    call = MambaDecoder(library, mixer.prepared())
    call(mixer.projected[rows], mixer.window, mixer.state, plan(routes, NOISE[rows]), out)
    return out


def expected(mixer: MixerRows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the output, windows and states by the operators in float64."""
    H, P, _, G = mixer.sizes
    window, state = mixer.window.double(), mixer.state.double()
    gate, inputs, dt = mixer.parts()
    conv_weight = mixer.weights.conv_weight.double()
    mixed = conv1d_update(inputs, conv_weight, mixer.conv_bias(), window, plan(ROUTES))
    y = torch.empty(len(ROUTES), H, P, dtype=torch.float64)
    state_update(state, mixer.scan(mixed, dt), plan(ROUTES), y)
    return gated_norm(y.flatten(1), gate, mixer.norm_weight(), EPS, G), window, state


def plan(routes: list[tuple[int, int, int]], noise: IntArray | None = None) -> SlotPlan:
    sources, targets, tracks = zip(*routes, strict=True)
    return SlotPlan.build(ints(sources), ints(targets), ints(tracks), CPU, noise)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(("dtype", "state", "tolerance", "state_tolerance"), TYPES)
@pytest.mark.parametrize("sizes", SIZES)
def test_a_step_equals_convolution_recurrence_and_norm(
    library: Library, sizes: Sizes, dtype: torch.dtype, state: torch.dtype, tolerance: float,
    state_tolerance: float, norm: bool,
) -> None:  # fmt: skip
    mixer = MixerRows(len(ROUTES), sizes, dtype, state, norm=norm)
    output, window, states = expected(mixer)
    before = mixer.state.clone()
    out = decode(mixer, library).double()
    # Without the norm the output is as large as its terms, of which some cancel.
    scale = max(1.0, float(output.abs().max())) if not norm else 4.0
    torch.testing.assert_close(out, output, rtol=tolerance, atol=tolerance * scale)
    assert torch.equal(mixer.window.double().nan_to_num(7), window.nan_to_num(7))
    torch.testing.assert_close(
        mixer.state.double(), states, rtol=state_tolerance, atol=state_tolerance * 4, equal_nan=True
    )
    for source, target, track in ROUTES:
        if track >= 0:
            assert torch.equal(mixer.state[track], mixer.state[target])
            assert torch.equal(mixer.window[track], mixer.window[target])
        if source not in (-1, target):
            assert torch.equal(mixer.state[source], before[source]), "a moved state leaves its source alone"
    assert mixer.state[[0, 5, 6, 13]].isnan().all(), "slots nobody named are left alone"


@pytest.mark.parametrize("stored", [torch.float32, torch.float16])
def test_a_row_has_the_same_bits_alone_among_others_and_on_any_number_of_threads(
    library: Library, threads: int, stored: torch.dtype
) -> None:
    def made() -> MixerRows:
        return MixerRows(len(ROUTES), (48, 32, 128, 1, 4), torch.bfloat16, stored, norm=True)

    together, alone = made(), made()
    library.set_threads(threads)
    out = decode(together, library)
    library.set_threads(1)
    for row in range(len(ROUTES)):
        assert torch.equal(decode(alone, library, slice(row, row + 1))[0], out[row])
    assert torch.equal(alone.state.nan_to_num(7), together.state.nan_to_num(7))
    assert torch.equal(alone.window.nan_to_num(7), together.window.nan_to_num(7))


def test_a_state_that_is_not_a_number_shows_in_its_own_row_alone(library: Library) -> None:
    mixer = MixerRows(len(ROUTES), (4, 32, 128, 1, 4), torch.bfloat16, torch.float32, norm=True)
    mixer.state[2, 3, 31, 127] = torch.nan
    assert decode(mixer, library).isnan().any(1).tolist() == [False, True, False, False, False]


@pytest.mark.parametrize(("dtype", "state"), [kinds[:2] for kinds in TYPES])
@pytest.mark.parametrize("sizes", SIZES)
def test_every_instruction_set_gives_the_same_bits(
    assert_same_bits: Callable[..., None], sizes: Sizes, dtype: torch.dtype, state: torch.dtype
) -> None:
    def run(library: Library) -> tuple[torch.Tensor, ...]:
        mixer = MixerRows(len(ROUTES), sizes, dtype, state, norm=True)
        return decode(mixer, library), mixer.window, mixer.state

    assert_same_bits(run)


@pytest.mark.parametrize("sizes", SIZES)
def test_float16_states_are_the_registers_rounded_by_the_word_of_their_row(
    library: Library, sizes: Sizes
) -> None:
    half = MixerRows(len(ROUTES), sizes, torch.float32, torch.float16, norm=True)
    exact = MixerRows(len(ROUTES), sizes, torch.float32, torch.float32, norm=True)
    exact.state.copy_(half.state)
    assert torch.equal(decode(half, library), decode(exact, library))
    targets = [target for _, target, _ in ROUTES]
    registers = exact.state[targets]
    round_to_float16_(registers, torch.from_numpy(NOISE))
    assert torch.equal(half.state[targets].float(), registers)
    assert torch.equal(half.window.nan_to_num(7), exact.window.nan_to_num(7)), "a window is not rounded"


def test_every_number_is_rounded_as_the_reference_rounds_it(library: Library) -> None:
    """All of float16 times a factor for each head: beyond its range, below its least, infinite, no number."""
    sizes = (6, 64, 1024, 1, 2)
    half, exact = (
        MixerRows(5, sizes, torch.float32, kind, norm=True) for kind in (torch.float16, torch.float32)
    )
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.float16)
    factors = torch.tensor([0.9, 1.7, 1e-3, 3e-5, 2e-9, 40.0])
    for mixer in (half, exact):
        mixer.state[1:5] = every.view(64, 1024)
        H, P = mixer.sizes[:2]
        mixer.projected[:, H * P : 2 * H * P] = 0  # x, so that a state is its factor times itself
        mixer.window[1:5, :, : H * P] = 0
        assert mixer.weights.conv_bias is not None
        mixer.weights.conv_bias[: H * P] = 0
        mixer.projected[:, -H:] = 30.0  # the step is its limit
        mixer.weights.A.copy_(factors.log() / LIMIT[1])
        decode(mixer, library)
    rows = [0, 1, 3, 4]
    targets = [ROUTES[row][1] for row in rows]
    registers = exact.state[targets]
    kinds = [registers.isinf(), registers.isnan(), registers.abs() > 65504, registers.abs() < 2.0**-24]
    assert all(int(kind.sum()) >= 40 for kind in kinds)
    round_to_float16_(registers, torch.from_numpy(NOISE[rows]))
    torch.testing.assert_close(half.state[targets].float(), registers, rtol=0, atol=0, equal_nan=True)
