"""A mixer of the gated delta rule in one call equals the operators it joins, wherever its states lie."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from mamba_kernels.arguments import WrongArgument
from mamba_kernels.conv1d_prefill import conv1d_prefill
from mamba_kernels.conv1d_update import conv1d_update
from mamba_kernels.cpu.library import Library
from mamba_kernels.gated_delta import gated_delta_prefill, gated_delta_update
from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.ssd_prefill import ChunkPlan
from mamba_kernels.stochastic_rounding import noise_words
from testmodels.chunks import CPU, PiecePlan, chunk_plan, ints, poisoned
from testmodels.delta_mixers import EPS, DeltaMixerRows, Sizes

ROUTES = [(1, 1, -1), (2, 7, 8), (-1, 9, 10), (4, 4, 11), (3, 12, -1)]
"""(slot_in, slot_out, track): in place, moved and tracked, from zero, in place and tracked, moved."""
PIECES = [
    PiecePlan(done=0, length=2, slot_in=-1, slot_out=5, checkpoints={}),
    PiecePlan(done=0, length=63, slot_in=-1, slot_out=6, checkpoints={16: 9, 50: 10, 63: 11}),
    PiecePlan(done=37, length=100, slot_in=1, slot_out=1, checkpoints={64: 12, 101: 13}),
    PiecePlan(done=64, length=1, slot_in=2, slot_out=7, checkpoints={65: 8}),
]
TOTAL = sum(piece.length for piece in PIECES)
SIZES: list[Sizes] = [
    (4, 2, 128, 128, 4),
    (3, 3, 1, 1, 2),
    (4, 2, 5, 7, 4),
    (2, 1, 17, 33, 3),
    (6, 3, 12, 16, 1),
]
TYPES = [
    (torch.float32, torch.float32, 1e-5),
    (torch.float32, torch.float16, 2e-3),
    (torch.bfloat16, torch.float32, 2e-2),
    (torch.bfloat16, torch.bfloat16, 2e-2),
]
"""Types of rows and states, and the tolerance against float64."""


def slots(rows: slice = slice(None)) -> SlotPlan:
    noise = noise_words(ints([5, 6, 7, 8, 9]), ints([100, 101, 1, 3, 70000]))
    return SlotPlan.build(*(ints(each) for each in zip(*ROUTES[rows], strict=True)), CPU, noise[rows])


def pieces(some: list[PiecePlan] = PIECES) -> ChunkPlan:
    return chunk_plan(some, 64)


def decode(mixer: DeltaMixerRows, library: Library, rows: slice = slice(None)) -> torch.Tensor:
    plan = slots(rows)
    out = poisoned(plan.routes.shape[1], mixer.values, dtype=mixer.projected.dtype)
    mixer.calls(library).decode(mixer.projected[rows], mixer.window, mixer.state, plan, out)
    return out


def prefill(
    mixer: DeltaMixerRows,
    library: Library,
    some: list[PiecePlan] = PIECES,
    rows: slice = slice(None),
) -> torch.Tensor:
    plan = pieces(some)
    out = poisoned(plan.tokens, mixer.values, dtype=mixer.projected.dtype)
    mixer.calls(library).prefill(mixer.projected[rows], mixer.window, mixer.state, plan, out)
    return out


Run = Callable[[DeltaMixerRows, Library], torch.Tensor]


def expected(mixer: DeltaMixerRows, run: Run) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the output, windows and states by the operators in float64."""
    H, _, V, _, _ = mixer.sizes
    window, state = mixer.window.double(), mixer.state.double()
    inputs, gate, b, a = mixer.parts()
    weight = mixer.weights.conv_weight.double()
    y = torch.empty(len(inputs), H, V, dtype=torch.float64)
    if run is decode:
        mixed = conv1d_update(inputs, weight, None, window, slots())
        gated_delta_update(state, mixer.rule(mixed, a, b), slots(), y)
    else:
        mixed = conv1d_prefill(inputs, weight, None, window, pieces())
        gated_delta_prefill(state, mixer.rule(mixed, a, b), pieces(), y)
    normed = F.rms_norm(y, (V,), mixer.weights.norm.double(), EPS)
    return normed.flatten(1) * F.silu(gate), window, state


@pytest.mark.parametrize(("run", "count"), [(decode, len(ROUTES)), (prefill, TOTAL)])
@pytest.mark.parametrize(("dtype", "stored", "tolerance"), TYPES)
@pytest.mark.parametrize("sizes", SIZES)
def test_a_call_equals_convolution_rule_norm_and_gate(
    library: Library, sizes: Sizes, dtype: torch.dtype, stored: torch.dtype, tolerance: float,
    run: Run, count: int,
) -> None:  # fmt: skip
    mixer = DeltaMixerRows(count, sizes, dtype, stored)
    output, window, state = expected(mixer, run)
    before = mixer.state.clone()
    got = run(mixer, library).double()
    # A head of one value is its own root mean square: its sign is all that stays, and may be near zero.
    if sizes[2] > 1:
        off = (got - output).square().mean().sqrt() / output.square().mean().sqrt()
        assert off < tolerance, off
    assert got.isfinite().all()
    torch.testing.assert_close(mixer.window.double(), window, rtol=0, atol=0, equal_nan=True)
    largest = float(state.nan_to_num(0).abs().max())
    torch.testing.assert_close(
        mixer.state.double(), state, rtol=tolerance, atol=tolerance * largest, equal_nan=True
    )
    assert torch.equal(mixer.state[2], before[2]), "a moved state leaves its source alone"


@pytest.mark.parametrize("stored", [torch.float32, torch.float16])
def test_a_row_has_the_same_bits_alone_among_others_and_on_any_number_of_threads(
    library: Library, threads: int, stored: torch.dtype
) -> None:
    together, alone = (
        DeltaMixerRows(len(ROUTES), (8, 4, 64, 128, 4), torch.bfloat16, stored) for _ in range(2)
    )
    library.set_threads(threads)
    out = decode(together, library)
    library.set_threads(1)
    for row in range(len(ROUTES)):
        assert torch.equal(decode(alone, library, slice(row, row + 1))[0], out[row])
    for mine, true in ((together.state, alone.state), (together.window, alone.window)):
        torch.testing.assert_close(mine, true, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("stored", [torch.float32, torch.float16])
def test_a_piece_has_the_same_bits_alone_among_others_and_on_any_number_of_threads(
    library: Library, threads: int, stored: torch.dtype
) -> None:
    together, alone = (DeltaMixerRows(TOTAL, (8, 4, 64, 128, 4), torch.bfloat16, stored) for _ in range(2))
    library.set_threads(threads)
    out, first = prefill(together, library), 0
    library.set_threads(1)
    for piece in PIECES:
        rows = slice(first, first + piece.length)
        assert torch.equal(prefill(alone, library, [piece], rows), out[rows])
        first = rows.stop
    for mine, true in ((together.state, alone.state), (together.window, alone.window)):
        torch.testing.assert_close(mine, true, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("dtype", "stored"), [kinds[:2] for kinds in TYPES])
@pytest.mark.parametrize("sizes", SIZES)
def test_every_instruction_set_gives_the_same_bits(
    assert_same_bits: Callable[..., None], sizes: Sizes, dtype: torch.dtype, stored: torch.dtype
) -> None:
    def run(library: Library) -> tuple[torch.Tensor, ...]:
        decodes, prompts = (DeltaMixerRows(count, sizes, dtype, stored) for count in (len(ROUTES), TOTAL))
        return (
            decode(decodes, library), decodes.window, decodes.state, prefill(prompts, library),
            prompts.window, prompts.state,
        )  # fmt: skip

    assert_same_bits(run)


def test_what_is_no_number_shows_in_its_own_head_alone(library: Library) -> None:
    mixer = DeltaMixerRows(len(ROUTES), (4, 2, 32, 64, 4), torch.float32, torch.float32)
    mixer.state[2, 3, 31, 5] = torch.nan
    spoilt = decode(mixer, library).isnan().unflatten(1, (4, 32))
    assert spoilt[1, 3].all()
    assert int(spoilt.sum()) == 32


def test_what_does_not_fit_is_named(library: Library) -> None:
    mixer = DeltaMixerRows(len(ROUTES), (4, 2, 5, 7, 4), torch.float32, torch.float32)
    calls, out = mixer.calls(library), torch.empty(len(ROUTES), mixer.values)
    right = (mixer.projected, mixer.window, mixer.state, out)
    for place, name in enumerate(("projected", "window", "state", "out")):
        for wrong in (right[place][..., :-1], right[place].double(), right[place].to("meta")):
            given = [*right[:place], wrong, *right[place + 1 :]]
            with pytest.raises(WrongArgument, match=f"^{name} "):
                calls.decode(*given[:3], slots(), given[3])
    with pytest.raises(WrongArgument, match=r"^projected "):
        calls.prefill(*right[:3], pieces(), out)
