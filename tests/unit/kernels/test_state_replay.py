"""Decoding with a ring has the bits of plain decoding, whenever a state is written."""

import numpy as np
import pytest
import torch

from mamba_kernels.delta_replay import gated_delta_replay
from mamba_kernels.gated_delta import gated_delta_update
from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.state_replay import RingPlan, state_replay
from mamba_kernels.state_update import reference, state_update
from testmodels.chunks import CPU, Mixer, ints, poisoned
from testmodels.replayed import LIMIT, check_bits, decode, delta, mamba2


@pytest.mark.parametrize(("in_place", "kind"), [(1, torch.float32), (1 << 60, torch.float64)])
def test_mamba2_has_the_bits_of_plain_decoding(
    in_place: int, kind: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "IN_PLACE_ELEMENTS", in_place)
    stored = torch.float64 if kind == torch.float64 else torch.float32
    rule = mamba2(4, 2, 5, 9, kind)
    plain = decode(rule, state_update, None, stored)
    runs = [decode(rule, state_update, state_replay, stored, early=step) for step in (-1, 3)]
    for run in runs:
        check_bits(run, plain)


@pytest.mark.parametrize("by_channel", [False, True], ids=["a decay a head", "a decay a channel"])
def test_the_delta_rule_has_the_bits_of_plain_decoding(by_channel: bool) -> None:
    """So many heads that rows have more elements together than a vector, and fewer alone."""
    rule = delta(8, 2, 5, 9, torch.float32, by_channel=by_channel)
    plain = decode(rule, gated_delta_update, None, torch.float32)
    replayed = decode(rule, gated_delta_update, gated_delta_replay, torch.float32)
    check_bits(replayed, plain)


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
def test_narrow_states_are_rounded_once_in_several_tokens_and_so_are_closer_to_wide_ones(
    stored: torch.dtype,
) -> None:
    rule = mamba2(4, 2, 16, 32, torch.float32)
    true = decode(rule, state_update, None, torch.float32).results[-1]
    replayed = decode(rule, state_update, state_replay, stored).results[-1]
    plain = decode(rule, state_update, None, stored).results[-1]
    assert (replayed - true).norm() < (plain - true).norm()


def test_a_row_of_padding_leaves_ring_and_states_alone() -> None:
    mixer = Mixer(H=2, P=5, N=3, G=1, T=1, dtype=torch.float32)
    state, ring = torch.full((2, 2, 5, 3), torch.nan), torch.full((2, 3, 16), torch.nan)
    plan = SlotPlan.build(ints([-1]), ints([-1]), ints([-1]), CPU)
    lanes = RingPlan(CPU, np.array([[-1], [0], [0]], np.int32))
    out = poisoned(1, 2, 5, dtype=torch.float32)
    state_replay(state, mixer.inputs(LIMIT), plan, lanes, ring, out)
    assert out.isfinite().all()
    assert state.isnan().all()
    assert ring.isnan().all()
