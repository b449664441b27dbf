"""Decoding with a ring has the bits of plain decoding by the same kernels, whenever a state is written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from counted_states import CountedKernels
from mamba_kernels.arguments import WrongArgument
from mamba_kernels.cpu.build import CannotBuild
from mamba_kernels.cpu.delta_mixer import DeltaWeights, GatedDeltaCalls
from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.mamba_decode import MambaDecoder
from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.state_replay import RingPlan, delta_width, scan_width
from mamba_kernels.stochastic_rounding import round_to_float16_
from matrix_size import only_in_gates
from testmodels import mixers
from testmodels.chunks import CPU, ints
from testmodels.delta_mixers import EPS, DeltaMixerRows
from testmodels.mixers import MixerRows
from testmodels.replayed import ROWS, Rule, Run, check_bits, decode, noise

LANES, INPUTS = 4, 2
DELTA_SIZES = [(4, 2, 32, 128, 4), (6, 3, 5, 9, 4), (2, 1, 7, 100, 2)]
KINDS = [
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.float32),
    (torch.bfloat16, torch.float16),
]
"""of the rows, of the states"""


class Steps:
    """The decode steps of one mixer, with windows of its own."""

    def __init__(self, library: Any, sizes: tuple[int, ...], kind: torch.dtype, rule: str) -> None:
        H, second, third, fourth, taps = sizes
        self.kind, self._rule = kind, rule
        if rule == "mamba2":
            P, N, G = second, third, fourth
            rows = MixerRows(ROWS, (H, P, N, G, taps), kind, torch.float32, norm=True)
            self._call: Callable[..., None] = MambaDecoder(library, rows.prepared())
            self.shape, self.ring_width = (H, P, N), scan_width(H, P, G, N)
            self.window, self._width = rows.window, rows.projected.shape[1]
        else:
            G, V, K = second, third, fourth
            rows_of_delta = DeltaMixerRows(ROWS, (H, G, V, K, taps), kind, torch.float32)
            decays, weights = 1, rows_of_delta.weights
            if rule == "channels":
                decays, bias = K, torch.randn(H, K, generator=torch.Generator().manual_seed(3))
                weights = DeltaWeights(weights.conv_weight, weights.A, bias, weights.norm)
            calls = GatedDeltaCalls(library, weights, key_heads=G, key_dim=K, norm_eps=EPS)
            self._call = calls.decode
            self.shape, self.ring_width = (H, V, K), delta_width(H, V, G, K, decays)
            self.window = rows_of_delta.window
            self._width = rows_of_delta.projected.shape[1] + H * (decays - 1)

    def rule(self) -> Rule:
        return Rule(self.inputs, self.shape, self.ring_width, self.kind)

    def inputs(self, step: int) -> torch.Tensor:
        return torch.randn(ROWS, self._width, generator=torch.Generator().manual_seed(step)).to(self.kind)

    def plain(self, state: torch.Tensor, projected: torch.Tensor, plan: SlotPlan, out: torch.Tensor) -> None:
        self.replay(state, projected, plan, None, None, out)

    def replay(
        self,
        state: torch.Tensor,
        projected: torch.Tensor,
        plan: SlotPlan,
        lanes: RingPlan | None,
        ring: torch.Tensor | None,
        out: torch.Tensor,
    ) -> None:
        result = torch.full((len(projected), self.shape[0] * self.shape[1]), torch.nan, dtype=self.kind)
        self._call(projected, self.window, state, plan, result, lanes, ring)
        out.copy_(result.view(out.shape))

    def empty_ring(self) -> torch.Tensor:
        return torch.full((LANES, INPUTS, self.ring_width), torch.nan, dtype=self.kind)


CASES = [
    *(("mamba2", sizes) for sizes in mixers.SIZES),
    *((rule, sizes) for rule in ("delta", "channels") for sizes in DELTA_SIZES),
]


def run(library: Library, rule: str, sizes: Any, kind: torch.dtype, stored: torch.dtype, ring: bool) -> Run:
    steps = Steps(library, sizes, kind, rule)
    return decode(steps.rule(), steps.plain, steps.replay if ring else None, stored)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rule", "sizes"), CASES)
def test_results_states_and_checkpoints_have_the_bits_of_plain_decoding(
    library: Library, rule: str, sizes: Any, kind: torch.dtype
) -> None:
    plain, ring = (run(library, rule, sizes, kind, torch.float32, each) for each in (False, True))
    check_bits(ring, plain)


@pytest.mark.parametrize(("rule", "sizes"), [CASES[0], CASES[5], CASES[8]])
def test_windows_move_with_each_token(library: Library, rule: str, sizes: Any) -> None:
    steps = [Steps(library, sizes, torch.bfloat16, rule) for _ in range(2)]
    for each, replay in zip(steps, (None, steps[1].replay), strict=True):
        decode(each.rule(), each.plain, replay, torch.float32)
    torch.testing.assert_close(steps[0].window, steps[1].window, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("rule", "sizes"), [("mamba2", (48, 32, 128, 1, 4)), ("delta", (16, 8, 64, 128, 4))])
def test_threads_do_not_change_the_bits(library: Library, threads: int, rule: str, sizes: Any) -> None:
    library.set_threads(threads)
    many = run(library, rule, sizes, torch.bfloat16, torch.float32, True)
    library.set_threads(1)
    check_bits(many, run(library, rule, sizes, torch.bfloat16, torch.float32, False))


@pytest.mark.parametrize(("kind", "stored"), KINDS)
@pytest.mark.parametrize(("rule", "sizes"), CASES)
def test_every_instruction_set_gives_the_same_bits(
    assert_same_bits: Callable[..., None], rule: str, sizes: Any, kind: torch.dtype, stored: torch.dtype
) -> None:
    def replayed(library: Library) -> tuple[torch.Tensor, ...]:
        steps = run(library, rule, sizes, kind, stored, True)
        return (*steps.results, *steps.states)

    assert_same_bits(replayed)


def two_tokens(steps: Steps, state: torch.Tensor, sources: list[int]) -> torch.Tensor:
    """Decode two tokens of each row from `sources` to slots 1 to ROWS, which only the second one writes."""
    ring, results = steps.empty_ring(), torch.full((2, ROWS, *steps.shape[:2]), torch.nan)
    targets = ints(range(1, ROWS + 1))
    for step in range(2):
        plan = SlotPlan.build(ints(sources), targets, ints([-1] * ROWS), CPU, noise(step))
        lanes = RingPlan(CPU, np.array([range(ROWS), [step] * ROWS, [step] * ROWS], np.int32))
        steps.replay(state, steps.inputs(step), plan, lanes, ring, results[step])
    return results


@pytest.mark.parametrize(("rule", "sizes"), CASES)
def test_a_sequence_without_a_state_begins_with_zeros(library: Library, rule: str, sizes: Any) -> None:
    zeros = ROWS + 1
    runs = []
    for source in (-1, zeros):
        steps = Steps(library, sizes, torch.float32, rule)
        state = torch.full((zeros + 1, *steps.shape), torch.nan)
        state[zeros], steps.window[zeros] = 0, 0
        runs.append((two_tokens(steps, state, [source] * ROWS), state[1:zeros]))
    assert runs[0][1].isfinite().all()
    for mine, true in zip(*runs, strict=True):
        assert torch.equal(mine, true)


@pytest.mark.parametrize(("rule", "sizes"), CASES)
def test_a_float16_state_is_rounded_once_by_the_word_of_the_token_that_writes_it(
    library: Library, rule: str, sizes: Any
) -> None:
    results, states = [], []
    for stored in (torch.float16, torch.float32):
        steps = Steps(library, sizes, torch.float32, rule)
        values = torch.randn(ROWS + 1, *steps.shape, generator=torch.Generator().manual_seed(5))
        state = values.half().to(stored)
        results.append(two_tokens(steps, state, [1, 2, 3]))
        states.append(state)
    assert torch.equal(results[0], results[1])
    registers = states[1][1:].clone()
    round_to_float16_(registers, torch.from_numpy(noise(1)))
    assert torch.equal(states[0][1:].float(), registers)


@pytest.mark.parametrize(("rule", "sizes"), [CASES[1], CASES[6]])
def test_a_row_without_a_lane_that_writes_nothing_leaves_ring_and_states_alone(
    library: Library, rule: str, sizes: Any
) -> None:
    steps = Steps(library, sizes, torch.float32, rule)
    state, ring = torch.full((ROWS + 1, *steps.shape), torch.nan), steps.empty_ring()
    state[0] = 1.0
    slots = ints([0] * ROWS)
    plan = SlotPlan.build(slots, slots, ints([-1] * ROWS), CPU, noise(0))
    lanes = RingPlan(CPU, np.array([[-1] * ROWS, [0] * ROWS, [0] * ROWS], np.int32))
    steps.window.zero_()
    out = torch.full((ROWS, *steps.shape[:2]), torch.nan)
    steps.replay(state, steps.inputs(0), plan, lanes, ring, out)
    assert out.isfinite().all()
    assert (state[0] == 1).all()
    assert ring.isnan().all()


@pytest.mark.parametrize(("rule", "sizes"), [CASES[1], CASES[6]])
def test_rings_and_plans_of_another_shape_are_refused(library: Library, rule: str, sizes: Any) -> None:
    steps = Steps(library, sizes, torch.float32, rule)
    state, ring = torch.zeros(ROWS + 1, *steps.shape), steps.empty_ring()
    slots = ints(range(1, ROWS + 1))
    plan = SlotPlan.build(slots, slots, ints([-1] * ROWS), CPU, noise(0))
    lanes = np.array([range(ROWS), [0] * ROWS, [1] * ROWS], np.int32)
    out = torch.empty(ROWS, *steps.shape[:2])
    wrong: list[tuple[torch.Tensor, Any, str]] = [
        (ring[:, :, 1:], lanes, "ring"),
        (ring.bfloat16(), lanes, "ring"),
        (ring.transpose(0, 1), lanes, "ring"),
        (ring, lanes[:, 1:], "lanes"),
    ]
    for memory, rows, name in wrong:
        with pytest.raises(WrongArgument, match=name):
            steps.replay(state, steps.inputs(0), plan, RingPlan(CPU, rows), memory, out)


@only_in_gates("17 processor seconds of a compiler; Triton's kernels are counted in each run")
@pytest.mark.parametrize(
    ("rule", "sizes"),
    [("mamba2", (1, 64, 128, 1, 4)), ("delta", (1, 1, 64, 128, 4))],
    ids=["mamba2", "delta"],
)
def test_128_rows_move_at_most_six_tenths_of_the_bytes_of_plain_decoding(
    rule: str, sizes: Any, tmp_path: Path
) -> None:
    """One row in eight is at each place of its ring, as in a batch whose rows began at any time."""
    try:
        kernels = CountedKernels(tmp_path)
    except CannotBuild as why:
        pytest.skip(str(why))
    rows, tokens = np.arange(128, dtype=np.int32), 8
    steps = Steps(kernels, sizes, torch.bfloat16, rule)
    inputs = steps.inputs(0)[:1].expand(len(rows), -1).contiguous()
    steps.window = torch.zeros(len(rows), *steps.window.shape[1:], dtype=torch.bfloat16)
    state, ring = torch.zeros(len(rows), *steps.shape), torch.zeros(len(rows), tokens - 1, steps.ring_width)
    plan = SlotPlan.build(rows, rows, np.full_like(rows, -1), CPU)
    due = rows % tokens == tokens - 1
    lanes, out = RingPlan(CPU, np.array([rows, rows % tokens, due], np.int32)), state[:, :, :, 0].clone()
    read, written = kernels.traffic(
        state, lambda: steps.replay(state, inputs, plan, lanes, ring.bfloat16(), out)
    )
    assert (read, written) == (state.nbytes, state.nbytes // tokens)
    # A row reads the inputs that wait, half of the ring, and leaves its own.
    beside = len(rows) * steps.ring_width * 2 * ((tokens - 1) / 2 + 1)
    _, plainly = kernels.traffic(state, lambda: steps.plain(state, inputs, plan, out))
    assert plainly == state.nbytes
    assert read + written + beside <= 0.6 * 2 * state.nbytes
