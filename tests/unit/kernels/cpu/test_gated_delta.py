"""The delta rule in C++ equals the reference in float64: ragged pieces, decodes, wherever states lie."""

import functools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from mamba_kernels.arguments import UnsupportedArgument, WrongArgument
from mamba_kernels.cpu.gated_delta import GatedDelta
from mamba_kernels.cpu.library import Library
from mamba_kernels.gated_delta import gated_delta_prefill, gated_delta_update
from mamba_kernels.slot_plan import IntArray, SlotPlan
from mamba_kernels.stochastic_rounding import noise_words, round_to_float16_
from testmodels.chunks import CPU, PiecePlan, chunk_plan, ints, poisoned, strided_cache
from testmodels.delta import Delta

RAGGED = [
    PiecePlan(done=0, length=1, slot_in=-1, slot_out=3, checkpoints={}),
    PiecePlan(done=0, length=63, slot_in=-1, slot_out=4, checkpoints={16: 9, 50: 10, 63: 11}),
    PiecePlan(done=37, length=100, slot_in=5, slot_out=5, checkpoints={64: 12, 101: 13}),
    PiecePlan(done=64, length=130, slot_in=6, slot_out=7, checkpoints={190: 14}),
]
"""From zero, in place and moved; chunks of 1 to 64 tokens."""
TOTAL = sum(piece.length for piece in RAGGED)
ROUTES = [(5, 5, -1), (6, 7, 8), (-1, 9, 10), (6, 12, -1), (-1, -1, -1)]
"""In place, moved and tracked, from zero, moved, padding."""
Sizes = tuple[int, ...]
SIZES: list[Sizes] = [
    (3, 3, 1, 1),
    (4, 2, 5, 7),
    (2, 1, 17, 16),
    (2, 2, 63, 100),
    (4, 1, 33, 257),
    (4, 2, 128, 128),
    (2, 2, 5, 7, 1),
    (4, 2, 63, 100, 1),
    (1, 1, 128, 128, 1),
]
"""Value heads H, key heads G, V, K; and 1 if each channel of a key has a decay."""
TYPES = [
    (torch.float32, torch.float32, 2e-6, 2e-6),
    (torch.float32, torch.float16, 2e-6, 2**-10),
    (torch.bfloat16, torch.bfloat16, 2**-8, 2**-8),
    (torch.bfloat16, torch.float32, 2**-8, 2e-6),
]
"""Types of rows and states, and the tolerances of outputs and states."""
WIDE: Sizes = (4, 2, 128, 128)
NOISE = noise_words(ints([5, 6, 7, 8, 9]), ints([100, 101, 1, 3, 70000]))


class Rows:
    """Random rows, and states of which slots 5 and 6 hold something."""

    def __init__(self, sizes: Sizes, count: int, dtype: torch.dtype, stored: torch.dtype) -> None:
        H, G, V, K, *by_channel = sizes
        self.delta = Delta(H, G, V, K, count, dtype, by_channel=bool(by_channel))
        self.state = strided_cache(16, H, V, K, dtype=stored)
        for slot in (5, 6):
            g = torch.Generator().manual_seed(slot)
            self.state[slot] = (torch.randn(H, V, K, generator=g) / 4).to(stored)

    def out(self, count: int) -> torch.Tensor:
        """Return room for `rows` rows as a part of wider ones."""
        H, V = self.delta.H, self.delta.V
        return strided_cache(count, H, V, dtype=self.delta.dtype)

    def prefill(
        self, library: Library, pieces: list[PiecePlan], rows: slice = slice(None), chunk: int = 64
    ) -> torch.Tensor:
        delta = self.delta.part(rows)
        out = self.out(delta.T)
        GatedDelta(library).prefill(self.state, delta.inputs, chunk_plan(pieces, chunk, noise(pieces)), out)
        return out

    def update(self, library: Library, rows: slice = slice(None)) -> torch.Tensor:
        delta = self.delta.part(rows)
        out = self.out(delta.T)
        GatedDelta(library).update(self.state, delta.inputs, slots(ROUTES[rows], NOISE[rows]), out)
        return out


def slots(routes: list[tuple[int, int, int]], words: IntArray | None = None) -> SlotPlan:
    return SlotPlan.build(*(ints(each) for each in zip(*routes, strict=True)), CPU, words)


def noise(pieces: list[PiecePlan]) -> IntArray:
    """Return a seed for each sequence, named by its destination slot."""
    depths = [np.arange(each.done + 1, each.done + each.length + 1) for each in pieces]
    seeds = [np.full(each.length, each.slot_out) for each in pieces]
    return noise_words(ints(np.concatenate(seeds)), ints(np.concatenate(depths)))


@functools.cache
def reference_prefill(
    sizes: Sizes, dtype: torch.dtype, stored: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute states and outputs in float64, once for all instruction sets, since it takes long."""
    rows = Rows(sizes, TOTAL, dtype, stored)
    truth, expected = rows.state.double(), poisoned(TOTAL, sizes[0], sizes[2])
    gated_delta_prefill(truth, rows.delta.wide().inputs, chunk_plan(RAGGED, 64), expected)
    return truth, expected


@pytest.mark.parametrize(("dtype", "stored", "tolerance", "state_tolerance"), TYPES)
@pytest.mark.parametrize("sizes", SIZES)
def test_ragged_pieces_equal_the_reference(
    library: Library, sizes: Sizes, dtype: torch.dtype, stored: torch.dtype, tolerance: float,
    state_tolerance: float,
) -> None:  # fmt: skip
    rows = Rows(sizes, TOTAL, dtype, stored)
    before, plan = rows.state.clone(), chunk_plan(RAGGED, 64)
    truth, expected = reference_prefill(sizes, dtype, stored)
    out = rows.prefill(library, RAGGED)
    largest = float(expected.abs().max())
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance * largest)
    named = [piece.slot_out for piece in RAGGED] + plan.tracked_slot_list
    largest = float(truth[named].abs().max())
    torch.testing.assert_close(
        rows.state[named].double(), truth[named], rtol=state_tolerance, atol=state_tolerance * largest
    )
    assert torch.equal(rows.state[6], before[6]), "a moved state leaves its source alone"
    assert rows.state[[0, 1, 2, 8, 15]].isnan().all(), "slots nobody named are left alone"


@pytest.mark.parametrize(("dtype", "stored", "tolerance", "state_tolerance"), TYPES)
@pytest.mark.parametrize("sizes", SIZES)
def test_decodes_equal_the_reference(
    library: Library, sizes: Sizes, dtype: torch.dtype, stored: torch.dtype, tolerance: float,
    state_tolerance: float,
) -> None:  # fmt: skip
    rows = Rows(sizes, 5, dtype, stored)
    truth, before = rows.state.double(), rows.state.clone()
    expected = poisoned(4, sizes[0], sizes[2])
    gated_delta_update(truth, rows.delta.wide().part(slice(4)).inputs, slots(ROUTES[:4]), expected)
    out = rows.update(library)
    largest = float(expected.abs().max())
    torch.testing.assert_close(out[:4].double(), expected, rtol=tolerance, atol=tolerance * largest)
    assert out.isfinite().all(), "padding is computed, too"
    for _, target, track in ROUTES[:4]:
        torch.testing.assert_close(
            rows.state[target].double(), truth[target], rtol=state_tolerance, atol=state_tolerance * 2
        )
        assert track < 0 or torch.equal(rows.state[track], rows.state[target])
    assert torch.equal(rows.state[6], before[6]), "a moved state leaves its source alone"
    assert rows.state[[0, 1, 2, 3, 4, 11, 13, 14, 15]].isnan().all(), "slots nobody named are left alone"


@pytest.mark.parametrize("chunk", [16, 48, 64, 100])
@pytest.mark.parametrize("stored", [torch.float32, torch.float16])
def test_a_piece_has_the_same_bits_alone_among_others_and_on_any_number_of_threads(
    library: Library, threads: int, stored: torch.dtype, chunk: int
) -> None:
    together, alone = (Rows(WIDE, TOTAL, torch.bfloat16, stored) for _ in range(2))
    library.set_threads(threads)
    out, first = together.prefill(library, RAGGED, chunk=chunk), 0
    library.set_threads(1)
    for piece in RAGGED:
        rows = slice(first, first + piece.length)
        assert torch.equal(alone.prefill(library, [piece], rows, chunk), out[rows])
        first = rows.stop
    assert torch.equal(alone.state.nan_to_num(7), together.state.nan_to_num(7))


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
def test_a_decode_has_the_same_bits_alone_among_others_and_on_any_number_of_threads(
    library: Library, threads: int, stored: torch.dtype
) -> None:
    together, alone = (Rows(WIDE, 5, torch.bfloat16, stored) for _ in range(2))
    library.set_threads(threads)
    out = together.update(library)
    library.set_threads(1)
    for row in (0, 1, 2, 3, 4):
        assert torch.equal(alone.update(library, slice(row, row + 1))[0], out[row])
    assert torch.equal(alone.state.nan_to_num(7), together.state.nan_to_num(7))


def test_a_state_is_the_same_however_a_prompt_was_cut_into_pieces(library: Library) -> None:
    whole, cut = (Rows(WIDE, 200, torch.bfloat16, torch.float32) for _ in range(2))
    out = whole.prefill(library, [PiecePlan(0, 200, -1, 1, {64: 5, 160: 6})])
    pieces = [
        PiecePlan(0, 64, -1, 1, {64: 5}),
        PiecePlan(64, 96, 1, 1, {160: 6}),
        PiecePlan(160, 40, 6, 1, {}),
    ]
    first, parts = 0, []
    for piece in pieces:
        parts.append(cut.prefill(library, [piece], slice(first, first + piece.length)))
        first += piece.length
    assert torch.equal(torch.cat(parts), out)
    assert torch.equal(whole.state[[1, 5, 6]], cut.state[[1, 5, 6]])


def test_a_prompt_is_its_tokens_one_by_one(library: Library) -> None:
    at_once, stepped = (Rows(WIDE, 70, torch.float32, torch.float32) for _ in range(2))
    out = at_once.prefill(library, [PiecePlan(0, 70, 5, 1, {})])
    calls, alone = GatedDelta(library), stepped.out(70)
    for t in range(70):
        some = slice(t, t + 1)
        calls.update(
            stepped.state, stepped.delta.part(some).inputs, slots([(1 if t else 5, 1, -1)]), alone[some]
        )
    torch.testing.assert_close(out, alone, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(at_once.state[1], stepped.state[1], rtol=1e-5, atol=1e-6)


def test_what_is_no_number_shows_in_its_own_head_and_in_no_token_before_it(library: Library) -> None:
    rows = Rows(WIDE, TOTAL, torch.float32, torch.float32)
    first = TOTAL - 130  # of the last piece
    rows.delta.inputs.v[first + 41, 1, 100] = torch.nan
    spoilt = rows.prefill(library, RAGGED).isnan()
    assert spoilt[first + 41 :, 1, 100].all()
    spoilt[first + 41 :, 1, 100] = False
    assert not spoilt.any()
    assert rows.state[7, 1, 100].isnan().all()
    assert int(rows.state[[3, 4, 5, 7]].isnan().sum()) == WIDE[3]


def test_a_state_that_is_not_a_number_shows_in_its_own_row_alone(library: Library) -> None:
    rows = Rows(WIDE, 5, torch.float32, torch.float32)
    rows.state[5, 3, 31, 127] = torch.nan
    spoilt = rows.update(library).isnan()
    assert spoilt[0, 3, 31]
    assert int(spoilt.sum()) == 1


def test_strong_decay_over_a_long_chunk_gives_numbers(library: Library) -> None:
    rows = Rows(WIDE, 130, torch.bfloat16, torch.float32)
    rows.delta.A.fill_(-60.0)
    rows.delta.dt_bias.fill_(8.0)
    assert rows.prefill(library, [PiecePlan(0, 130, 5, 1, {})], chunk=128).isfinite().all()
    assert rows.state[1].isfinite().all()


def test_keys_that_are_all_the_same_are_solved_for(library: Library) -> None:
    """The worst system: every token wants to replace what the one before wrote."""
    rows = Rows((1, 1, 4, 16), 64, torch.float32, torch.float32)
    rows.delta.mixed[:, 16:32] = 1.0
    rows.delta.gates[:, 1] = 40.0
    rows.delta.A[:] = -1e-9
    out = rows.prefill(library, [PiecePlan(0, 64, -1, 1, {})])
    truth, expected = poisoned(2, 1, 4, 16), poisoned(64, 1, 4)
    plan = chunk_plan([PiecePlan(0, 64, -1, 1, {})], 64)
    gated_delta_prefill(truth, rows.delta.wide().inputs, plan, expected)
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(rows.state[1].double(), truth[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("dtype", "stored"), [kinds[:2] for kinds in TYPES])
@pytest.mark.parametrize("sizes", SIZES)
def test_every_instruction_set_gives_the_same_bits(
    assert_same_bits: Callable[..., None], sizes: Sizes, dtype: torch.dtype, stored: torch.dtype
) -> None:
    def run(library: Library) -> tuple[torch.Tensor, ...]:
        prompts, decodes = Rows(sizes, TOTAL, dtype, stored), Rows(sizes, 5, dtype, stored)
        return prompts.prefill(library, RAGGED), prompts.state, decodes.update(library), decodes.state

    assert_same_bits(run)


@pytest.mark.parametrize("sizes", SIZES)
def test_float16_states_and_checkpoints_are_the_registers_rounded_by_their_depths(
    library: Library, sizes: Sizes
) -> None:
    half, exact = (Rows(sizes, TOTAL, torch.float32, stored) for stored in (torch.float16, torch.float32))
    exact.state.copy_(half.state)
    assert torch.equal(half.prefill(library, RAGGED), exact.prefill(library, RAGGED))
    words, first = torch.from_numpy(noise(RAGGED)), 0
    for piece in RAGGED:
        for depth, slot in [*piece.checkpoints.items(), (piece.done + piece.length, piece.slot_out)]:
            row = first + depth - piece.done - 1
            registers = exact.state[slot][None].clone(memory_format=torch.contiguous_format)
            round_to_float16_(registers, words[row : row + 1])
            assert torch.equal(half.state[slot].float(), registers[0]), (depth, slot)
        first += piece.length


@pytest.mark.parametrize("sizes", SIZES)
def test_float16_states_are_the_registers_rounded_by_the_word_of_their_row(
    library: Library, sizes: Sizes
) -> None:
    half, exact = (Rows(sizes, 5, torch.float32, stored) for stored in (torch.float16, torch.float32))
    exact.state.copy_(half.state)
    assert torch.equal(half.update(library), exact.update(library))
    targets = [target for _, target, _ in ROUTES[:4]]
    registers = exact.state[targets]
    round_to_float16_(registers, torch.from_numpy(NOISE[:4]))
    assert torch.equal(half.state[targets].float(), registers)


@pytest.mark.parametrize("prompt", [True, False])
def test_bfloat16_states_are_the_registers_rounded_to_nearest(library: Library, prompt: bool) -> None:
    near, exact = (Rows(WIDE, 5, torch.float32, stored) for stored in (torch.bfloat16, torch.float32))
    exact.state.copy_(near.state)
    for rows in (near, exact):
        rows.prefill(library, [PiecePlan(3, 5, 5, 7, {})]) if prompt else rows.update(library)
    assert torch.equal(near.state[7], exact.state[7].bfloat16())


def test_slots_beyond_2_to_the_31_elements(library: Library) -> None:
    rows = Delta(1, 1, 2, 4, 1, torch.float32)
    # Only the pages that are touched take memory.
    memory = torch.empty((1 << 31) + 16, dtype=torch.float16)
    state = memory.as_strided((2, 1, 2, 4), ((1 << 31) + 8, 8, 4, 1))
    small, calls = torch.full((2, 1, 2, 4), 0.5, dtype=torch.float16), GatedDelta(library)
    for prompt in (True, False):
        state[1], small[1] = 0.5, 0.5
        outs = torch.empty(2, 1, 1, 2)
        for cache, out in zip((state, small), outs, strict=True):
            if prompt:
                calls.prefill(cache, rows.inputs, chunk_plan([PiecePlan(1, 1, 1, 1, {})], 64), out)
            else:
                calls.update(cache, rows.inputs, slots([(1, 1, -1)]), out)
        assert torch.equal(outs[0], outs[1])
        assert torch.equal(state[1], small[1])


def test_a_type_that_the_others_do_not_have_is_named(library: Library) -> None:
    given, out = Delta(2, 1, 4, 8, 3, torch.float32).inputs, torch.empty(3, 2, 4)
    calls, plan, state = GatedDelta(library), slots([(1, 1, -1)] * 3), torch.zeros(3, 2, 4, 8)
    wrong = {
        "v is float16": (replace(given, v=given.v.half(), k=given.k.half(), q=given.q.half()), out),
        "q is float16": (replace(given, q=given.q.half()), out),
        "a is bfloat16": (replace(given, a=given.a.bfloat16()), out),
        "A is bfloat16": (replace(given, A=given.A.bfloat16()), out),
        "out is bfloat16": (given, out.bfloat16()),
    }
    for named, (inputs, to) in wrong.items():
        with pytest.raises(UnsupportedArgument, match=f"^{named}"):
            calls.update(state, inputs, plan, to)
    with pytest.raises(WrongArgument, match=r"^v has 3 rows; its plan was made for 2"):
        calls.update(state, given, slots([(1, 1, -1)] * 2), out)
    with pytest.raises(WrongArgument, match=r"^v has 3 rows; its plan was made for 4"):
        calls.prefill(state, given, chunk_plan([PiecePlan(0, 4, -1, 1, {})], 64), out)
