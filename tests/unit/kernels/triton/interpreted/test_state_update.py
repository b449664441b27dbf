"""A decode step equals the reference in float64, wherever the states lie and however they are stored."""

import pytest
import torch

from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.state_update import reference
from mamba_kernels.state_update.triton import state_update
from mamba_kernels.triton_support import UnsupportedArgument
from testmodels.chunks import CPU, Mixer, ints, poisoned, strided_cache
from triton_close import close, wide

LIMIT = (0.01, 3.0)
ROUTES = [(1, 1, -1), (2, 7, 8), (-1, 9, 10), (4, 4, 11), (2, 12, -1)]
"""(slot_in, slot_out, track): in place, moved and tracked, from zero, in place and tracked, moved."""


def plan(routes: list[tuple[int, int, int]] = ROUTES) -> SlotPlan:
    return SlotPlan.build(*(ints(each) for each in zip(*routes, strict=True)), CPU)


def filled(mixer: Mixer, dtype: torch.dtype) -> torch.Tensor:
    state = strided_cache(14, mixer.H, mixer.P, mixer.N, dtype=dtype)
    for slot in (1, 2, 4):
        g = torch.Generator().manual_seed(slot)
        state[slot] = torch.randn(mixer.H, mixer.P, mixer.N, generator=g).to(dtype)
    return state


@pytest.mark.parametrize(
    ("H", "G", "P", "N", "kind", "stored"),
    [
        (4, 1, 1, 63, torch.float32, torch.float32),
        (2, 2, 5, 1, torch.bfloat16, torch.float32),
        (6, 2, 3, 100, torch.float32, torch.float16),
        (1, 1, 7, 257, torch.bfloat16, torch.float16),
        (2, 1, 80, 16, torch.float16, torch.float32),
    ],
)
def test_rows_equal_the_reference(
    H: int, G: int, P: int, N: int, kind: torch.dtype, stored: torch.dtype
) -> None:
    mixer = Mixer(H=H, P=P, N=N, G=G, T=len(ROUTES), dtype=kind)
    state, out = filled(mixer, stored), poisoned(mixer.T, H, P, dtype=torch.float32)
    truth, expected = state.double(), poisoned(mixer.T, H, P)
    before = state.clone()
    reference.state_update(truth, wide(mixer).inputs(LIMIT), plan(), expected)
    state_update(state, mixer.inputs(LIMIT), plan(), out)
    close(out, expected)
    for _, target, track in ROUTES:
        close(state[target], truth[target])
        assert track < 0 or torch.equal(state[track], state[target]), "state and checkpoint cannot disagree"
    assert torch.equal(state[2], before[2]), "a moved state leaves its source alone"
    assert state[[0, 3, 5, 6, 13]].isnan().all(), "slots nobody named are left alone"


def test_steps_of_any_size_are_finite() -> None:
    mixer = Mixer(H=4, P=2, N=4, G=1, T=3, dtype=torch.float32)
    mixer.dt[:] = torch.tensor([[-200.0, -20.0, -3.0, 200.0]] * 3)
    mixer.A[:] = torch.tensor([-1.0, -1e4, -1e-8, -300.0])
    state, out = filled(mixer, torch.float32), poisoned(3, 4, 2, dtype=torch.float32)
    truth, expected = state.double(), poisoned(3, 4, 2)
    unlimited = (0.0, float("inf"))
    reference.state_update(truth, wide(mixer).inputs(unlimited), plan(ROUTES[:3]), expected)
    state_update(state, mixer.inputs(unlimited), plan(ROUTES[:3]), out)
    close(out, expected)
    close(state[[1, 7, 9]], truth[[1, 7, 9]])


def test_slots_beyond_2_to_the_31_elements() -> None:
    mixer = Mixer(H=1, P=2, N=4, G=1, T=1, dtype=torch.float32)
    # Only the pages that are touched take memory.
    memory = torch.empty((1 << 31) + 16, dtype=torch.float16)
    state = memory.as_strided((2, 1, 2, 4), ((1 << 31) + 8, 8, 4, 1))
    state[1] = 1.0
    truth, out, expected = state.double(), poisoned(1, 1, 2, dtype=torch.float32), poisoned(1, 1, 2)
    route = plan([(1, 1, -1)])
    reference.state_update(truth, wide(mixer).inputs(LIMIT), route, expected)
    state_update(state, mixer.inputs(LIMIT), route, out)
    close(out, expected)
    close(state[1], truth[1])


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("B", lambda mixer: mixer.B.double()),
        ("B", lambda mixer: torch.zeros(mixer.T, 3, mixer.N)),
        ("C", lambda mixer: mixer.C[..., :-1]),
        ("dt", lambda mixer: mixer.dt[:-1]),
        ("A", lambda mixer: mixer.A[:-1]),
        ("x", lambda mixer: mixer.x.transpose(1, 2).contiguous().transpose(1, 2)),
    ],
)
def test_a_wrong_argument_is_named(name: str, bad) -> None:
    mixer = Mixer(H=4, P=2, N=8, G=1, T=5, dtype=torch.float32)
    state = filled(mixer, torch.float32)
    setattr(mixer, name, bad(mixer))
    before = state.clone()
    with pytest.raises(UnsupportedArgument, match=rf"^{name} "):
        state_update(state, mixer.inputs(LIMIT), plan(), torch.empty(5, 4, 2))
    torch.testing.assert_close(state, before, equal_nan=True)


def test_a_row_of_padding_touches_no_state() -> None:
    mixer = Mixer(H=2, P=5, N=3, G=1, T=2, dtype=torch.float32)
    state, out = filled(mixer, torch.float32), poisoned(2, 2, 5, dtype=torch.float32)
    before = state.clone()
    state_update(state, mixer.inputs(LIMIT), plan([(1, 1, -1), (-1, -1, -1)]), out)
    assert out.isfinite().all()
    assert not torch.equal(state[1], before[1])
    untouched = [slot for slot in range(len(state)) if slot != 1]
    torch.testing.assert_close(state[untouched], before[untouched], rtol=0, atol=0, equal_nan=True)
