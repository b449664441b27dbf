"""The GPU measurement tells a right kernel from a wrong one."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.gpu.operator_calls import OperatorCall, differences
from benchmarks.gpu.tolerances import complaint

from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.state_update import state_update
from testmodels.chunks import Mixer, strided_cache

ROWS, SLOTS, H, P, N = 3, 7, 2, 4, 8
CPU = torch.device("cpu")
Kernel = Callable[..., Any]


def call() -> OperatorCall:
    """Return an update of three slots, one of them tracked; the others hold NaN."""
    mixer = Mixer(H, P, N, 1, ROWS, dtype=torch.float32)
    state = strided_cache(SLOTS, H, P, N, dtype=torch.float32)
    slots = np.array([1, 4, 6], np.int32)
    state[slots.tolist()] = torch.randn(ROWS, H, P, N)
    plan = SlotPlan.build(slots, slots, np.array([-1, 2, -1], np.int32), CPU)
    out = torch.empty(ROWS, H, P)
    return OperatorCall("state_update", (state, mixer.inputs((0.0, float("inf"))), plan, out), {})


def of_another_slot(state: torch.Tensor, inputs: Any, plan: SlotPlan, out: torch.Tensor) -> None:
    state_update(state, inputs, plan, out)
    state[5, 0, 0, 0] = 1.0


def slightly_off(state: torch.Tensor, inputs: Any, plan: SlotPlan, out: torch.Tensor) -> None:
    state_update(state, inputs, plan, out)
    state[4] *= 1.05


def half_written(state: torch.Tensor, inputs: Any, plan: SlotPlan, out: torch.Tensor) -> None:
    before = out[1:].clone()
    state_update(state, inputs, plan, out)
    out[1:] = before


def untracked(state: torch.Tensor, inputs: Any, plan: SlotPlan, out: torch.Tensor) -> None:
    slots = np.array(plan.target_slots, np.int32)
    state_update(state, inputs, SlotPlan.build(slots, slots, np.full_like(slots, -1), CPU), out)


def test_the_operator_itself_is_right() -> None:
    assert complaint(differences(call(), state_update, torch.float64), torch.float32) == ""


@pytest.mark.parametrize("kernel", [of_another_slot, slightly_off, half_written, untracked])
def test_a_wrong_kernel_is_noticed(kernel: Kernel) -> None:
    assert complaint(differences(call(), kernel, torch.float64), torch.float32)


def test_a_comparison_leaves_the_arguments_as_they_are() -> None:
    asked = call()
    before = asked.arguments[0].clone()
    differences(asked, of_another_slot, torch.float64)
    torch.testing.assert_close(asked.arguments[0], before, equal_nan=True, rtol=0, atol=0)
