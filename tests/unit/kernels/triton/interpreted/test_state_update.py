"""A decode step equals the reference in float64, wherever the states lie and however they are stored."""

import pytest
import torch

from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.state_update import reference
from mamba_kernels.state_update.triton import state_update
from mamba_kernels.stochastic_rounding import noise_words, round_to_float16_
from testmodels.chunks import CPU, Mixer, ints, poisoned, strided_cache
from triton_close import close, wide

LIMIT = (0.01, 3.0)
ROUTES = [(1, 1, -1), (2, 7, 8), (-1, 9, 10), (4, 4, 11), (2, 12, -1)]
"""(slot_in, slot_out, track): in place, moved and tracked, from zero, in place and tracked, moved."""


NOISE = noise_words(ints([5, 6, 7, 8, 9]), ints([100, 101, 1, 3, 70000]))


def plan(routes: list[tuple[int, int, int]] = ROUTES) -> SlotPlan:
    source, target, track = (ints(each) for each in zip(*routes, strict=True))
    return SlotPlan.build(source, target, track, CPU, NOISE[: len(routes)])


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


# The outputs of infinite states are no numbers.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_number_is_rounded_as_the_reference_rounds_it() -> None:
    """All of float16 times a factor for each head: beyond its range, below its least, infinite, no number."""
    mixer = Mixer(H=4, P=64, N=1024, G=1, T=1, dtype=torch.float32)
    mixer.x[:], mixer.dt[:], mixer.dt_bias[:] = 0.0, 30.0, 0.0
    mixer.A[:] = torch.tensor([0.9, 1.7, 3e-5, 2e-9]).log() / LIMIT[1]
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.float16)
    half = torch.zeros(3, 4, 64, 1024, dtype=torch.float16)
    half[1] = every.view(64, 1024)
    exact, out = half.float(), poisoned(1, 4, 64, dtype=torch.float32)
    for state in (half, exact):
        state_update(state, mixer.inputs(LIMIT), plan([(1, 2, -1)]), out)
    registers = exact[2:]
    kinds = [registers.isinf(), registers.isnan(), registers.abs() > 65504, registers.abs() < 2.0**-24]
    assert all(int(kind.sum()) >= 8 for kind in kinds)
    round_to_float16_(registers, torch.from_numpy(NOISE[:1]))
    torch.testing.assert_close(half[2:].float(), registers, rtol=0, atol=0, equal_nan=True)


def test_float16_states_and_checkpoints_are_the_registers_rounded_by_the_word_of_their_row() -> None:
    mixer = Mixer(H=3, P=5, N=63, G=1, T=len(ROUTES), dtype=torch.float32)
    half = filled(mixer, torch.float16)
    exact, out = half.float(), poisoned(mixer.T, 3, 5, dtype=torch.float32)
    for state in (half, exact):
        state_update(state, mixer.inputs(LIMIT), plan(), out)
    targets = [target for _, target, _ in ROUTES]
    registers = exact[targets]
    round_to_float16_(registers, torch.from_numpy(NOISE))
    assert torch.equal(half[targets].float(), registers)
    assert torch.equal(half[[8, 10, 11, 12]], half[[7, 9, 4, 12]])


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


def test_a_row_of_padding_touches_no_state() -> None:
    mixer = Mixer(H=2, P=5, N=3, G=1, T=2, dtype=torch.float32)
    state, out = filled(mixer, torch.float32), poisoned(2, 2, 5, dtype=torch.float32)
    before = state.clone()
    state_update(state, mixer.inputs(LIMIT), plan([(1, 1, -1), (-1, -1, -1)]), out)
    assert out.isfinite().all()
    assert not torch.equal(state[1], before[1])
    untouched = [slot for slot in range(len(state)) if slot != 1]
    torch.testing.assert_close(state[untouched], before[untouched], rtol=0, atol=0, equal_nan=True)
