"""The kernels with a ring have the bits of the plain kernels, and move at most 0.6 of their bytes."""

from typing import Any

import numpy as np
import pytest
import torch

from kernel_traffic import counted
from mamba_kernels.delta_replay import triton as delta_triton
from mamba_kernels.gated_delta.triton import gated_delta_update
from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.state_replay import RingPlan, delta_width, scan_width, state_replay
from mamba_kernels.state_replay import triton as scan_triton
from mamba_kernels.state_update.triton import state_update
from matrix_size import LARGE
from testmodels.chunks import CPU, Mixer, ints, poisoned
from testmodels.delta import Delta
from testmodels.replayed import LIMIT, check_bits, decode, delta, mamba2

ROWS, RING = 128, 8


@pytest.mark.parametrize(
    ("rule", "plain", "replay"),
    [
        (mamba2(2, 1, 5, 9, torch.bfloat16), state_update, scan_triton.state_replay),
        (delta(2, 1, 5, 9, torch.bfloat16), gated_delta_update, delta_triton.gated_delta_replay),
    ],
    ids=["mamba2", "delta"],
)
def test_results_states_and_checkpoints_have_the_bits_of_plain_decoding(
    rule: Any, plain: Any, replay: Any
) -> None:
    check_bits(decode(rule, plain, replay, torch.float32), decode(rule, plain, None, torch.float32))


@pytest.mark.slow
def test_a_float16_state_is_rounded_by_the_word_of_the_token_that_writes_it() -> None:
    rule = mamba2(1, 1, 5, 9, torch.float32)
    kernel = decode(rule, state_update, scan_triton.state_replay, torch.float16)
    true = decode(rule, state_update, state_replay, torch.float16)
    for mine, expected in zip(kernel.states, true.states, strict=True):
        torch.testing.assert_close(mine, expected, rtol=2e-3, atol=1e-5, equal_nan=True)


def test_a_row_of_padding_leaves_ring_and_states_alone() -> None:
    mixer = Mixer(H=2, P=5, N=3, G=1, T=1, dtype=torch.float32)
    state, ring = torch.full((2, 2, 5, 3), torch.nan), torch.full((2, 3, 16), torch.nan)
    plan = SlotPlan.build(ints([-1]), ints([-1]), ints([-1]), CPU)
    lanes = RingPlan(CPU, np.array([[-1], [0], [0]], np.int32))
    out = poisoned(1, 2, 5, dtype=torch.float32)
    scan_triton.state_replay(state, mixer.inputs(LIMIT), plan, lanes, ring, out)
    assert out.isfinite().all()
    assert state.isnan().all()
    assert ring.isnan().all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mamba2", "delta"] if LARGE else ["mamba2"])
def test_128_rows_move_at_most_six_tenths_of_the_bytes_of_plain_decoding(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One head a program, of a width at which a ring is as large, beside its state, as real models have it.

    One row in eight is at each place of its ring, as in a batch whose rows began at any time.
    """
    monkeypatch.setattr(scan_triton, "ELEMENTS", 1 << 20)
    monkeypatch.setattr(delta_triton, "ELEMENTS", 1 << 20)
    rows = np.arange(ROWS)
    plan = SlotPlan.build(ints(rows + 1), ints(rows + 1), ints(0 * rows - 1), CPU)
    lanes = RingPlan(CPU, np.array([rows, rows % RING, rows % RING == RING - 1], np.int32))
    state, out = torch.zeros(ROWS + 1, 1, 64, 128), poisoned(ROWS, 1, 64, dtype=torch.bfloat16)
    width = scan_width(1, 64, 1, 128) if kind == "mamba2" else delta_width(1, 64, 1, 128)
    ring = torch.randn(ROWS, RING - 1, width).bfloat16()
    with counted() as traffic:
        if kind == "mamba2":
            mixer = Mixer(H=1, P=64, N=128, G=1, T=ROWS, dtype=torch.bfloat16)
            scan_triton.state_replay(state, mixer.inputs(LIMIT), plan, lanes, ring, out)
        else:
            inputs = Delta(H=1, G=1, V=64, K=128, T=ROWS, dtype=torch.bfloat16).inputs
            delta_triton.gated_delta_replay(state, inputs, plan, lanes, ring, out)
    states = ROWS * state[0].nbytes
    # A plain step reads x, B, C and dt, or q, k, v and gates, and writes results beside its states.
    plain = 2 * states + ROWS * (64 + 2 * 128 + 1 + 64) * 2
    assert traffic.asked_of(state) == states * (1 + 1 / RING), "read each step, written once in eight"
    assert traffic.moved <= 0.6 * plain
