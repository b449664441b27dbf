"""Decodes of several sequences, token by token: plainly, and with a ring that is folded now and then."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.state_replay import RingPlan, delta_width, scan_width
from mamba_kernels.stochastic_rounding import noise_words
from testmodels.chunks import CPU, Mixer, ints, poisoned, strided_cache
from testmodels.delta import Delta

LIMIT = (0.01, 3.0)
ROWS, STEPS, RING = 3, 5, 3
FIRST = (0, 5, 1)
"""Depth at which each row begins: rows write their states at multiples of RING."""
LANES = (2, 0, 3)
SPARE = ROWS + 1
"""First slot of checkpoints."""


@dataclass
class Rule:
    """One of both recurrences at one shape. `inputs(step)`: rows of a step, the same each time.

    `kind` is the type of the rows, and `width` the number of elements of an input of a ring.
    """

    inputs: Callable[[int], Any]
    shape: tuple[int, int, int]
    width: int
    kind: torch.dtype


def mamba2(H: int, G: int, P: int, N: int, kind: torch.dtype) -> Rule:
    def inputs(step: int) -> Any:
        return Mixer(H=H, P=P, N=N, G=G, T=ROWS, dtype=kind, seed=step).inputs(LIMIT)

    fixed = inputs(0)

    def of_step(step: int) -> Any:
        rows = inputs(step)
        return type(rows)(rows.x, rows.dt, fixed.A, rows.B, rows.C, fixed.D, fixed.dt_bias, LIMIT)

    return Rule(of_step, (H, P, N), scan_width(H, P, G, N), kind)


def delta(H: int, G: int, V: int, K: int, kind: torch.dtype, *, by_channel: bool = False) -> Rule:
    fixed = Delta(H=H, G=G, V=V, K=K, T=ROWS, dtype=kind, by_channel=by_channel)

    def of_step(step: int) -> Any:
        rows = Delta(H=H, G=G, V=V, K=K, T=ROWS, dtype=kind, seed=step, by_channel=by_channel)
        rows.A, rows.dt_bias = fixed.A, fixed.dt_bias
        return rows.inputs

    return Rule(of_step, (H, V, K), delta_width(H, V, G, K, K if by_channel else 1), kind)


@dataclass
class Run:
    """Results of all steps, and all slots at the end of each."""

    results: list[torch.Tensor]
    states: list[torch.Tensor]
    waiting: list[list[int]]
    """Inputs that each row's state lacks after each step."""


def noise(step: int) -> Any:
    return noise_words(ints(range(ROWS)), ints([first + step + 1 for first in FIRST]))


def decode(rule: Rule, plain: Any, replay: Any | None, stored: torch.dtype, *, early: int = -1) -> Run:
    """Decode STEPS tokens of each row. `replay`: the step with a ring; None = plain steps.

    The last row has a checkpoint at each multiple of RING. `early`: step in which all rows write.
    """
    H, P, N = rule.shape
    state = strided_cache(2 * ROWS + 1, H, P, N, dtype=stored)
    generator = torch.Generator().manual_seed(7)
    for slot in range(1, ROWS + 1):
        state[slot] = torch.randn(H, P, N, generator=generator).to(stored)
    ring = torch.full((max(LANES) + 1, RING - 1, rule.width), torch.nan, dtype=rule.kind)
    waiting, run = np.zeros(ROWS, np.int32), Run([], [], [])
    slots = ints(range(1, ROWS + 1))
    for step in range(STEPS):
        due = np.array([(first + step + 1) % RING == 0 for first in FIRST])
        writes = due | (step == early)
        track = ints([-1] * (ROWS - 1) + [SPARE + step % ROWS if due[-1] else -1])
        plan = SlotPlan.build(slots, slots, track, CPU, noise(step))
        out = poisoned(ROWS, H, P, dtype=torch.float64 if rule.kind == torch.float64 else torch.float32)
        if replay is None:
            plain(state, rule.inputs(step), plan, out)
        else:
            lanes = RingPlan(CPU, np.array([LANES, waiting, writes], np.int32))
            replay(state, rule.inputs(step), plan, lanes, ring, out)
            waiting = np.where(writes, 0, waiting + 1).astype(np.int32)
        run.results.append(out)
        run.states.append(state.clone())
        run.waiting.append(waiting.tolist())
    return run


def check_bits(replayed: Run, plain: Run) -> None:
    """Check that every result, and every state that lacks nothing, has the bits of plain decoding."""
    written = 0
    for step, (mine, true) in enumerate(zip(replayed.results, plain.results, strict=True)):
        assert torch.equal(mine, true), step
        for row, waiting in enumerate(replayed.waiting[step]):
            if waiting == 0:
                written += 1
                assert torch.equal(replayed.states[step][row + 1], plain.states[step][row + 1]), (step, row)
            elif step:
                before, after = (replayed.states[at][row + 1] for at in (step - 1, step))
                assert torch.equal(before, after), "a state is written once in several tokens"
        spare = slice(SPARE, None)
        torch.testing.assert_close(
            replayed.states[step][spare], plain.states[step][spare], rtol=0, atol=0, equal_nan=True
        )
    assert 0 < written < STEPS * ROWS
