"""A decode step equals one step of the recurrence, on both of its paths, wherever the state lies."""

import pytest
import torch

from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.ssd_prefill import ssd_prefill, ssd_sequential
from mamba_kernels.state_update import reference as path
from mamba_kernels.state_update import state_update
from mamba_kernels.stochastic_rounding import round_to_float16_
from testmodels.chunks import CPU, Mixer, PiecePlan, chunk_plan, ints, poisoned, strided_cache
from testmodels.no_sync import no_sync

LIMIT = (0.01, 3.0)
ROUTES = [(1, 1, -1), (2, 7, 8), (-1, 9, 10), (4, 4, 11), (2, 12, -1)]
"""(slot_in, slot_out, track): in place, moved and tracked, from zero, in place and tracked, moved."""


def plan() -> SlotPlan:
    sources, targets, tracks = zip(*ROUTES, strict=True)
    return SlotPlan.build(ints(sources), ints(targets), ints(tracks), CPU)


def filled(mixer: Mixer) -> torch.Tensor:
    state = strided_cache(14, mixer.H, mixer.P, mixer.N, dtype=mixer.dtype)
    for slot in (1, 2, 4):
        g = torch.Generator().manual_seed(slot)
        state[slot] = torch.randn(mixer.H, mixer.P, mixer.N, generator=g, dtype=torch.float64).to(mixer.dtype)
    return state


@pytest.fixture(
    params=["gathered", "gathered, few rows at a time", "in place", "in place, two heads at a time"]
)
def _path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path, "IN_PLACE_ELEMENTS", 1 if request.param.startswith("in place") else 1 << 60)
    if request.param.endswith("few rows at a time"):
        monkeypatch.setattr(path, "GATHER_ELEMENTS", 2 * 6 * 5 * 9)
    if request.param.endswith("heads at a time"):
        monkeypatch.setattr(path, "CACHED_ELEMENTS", 2 * 5 * 9)


@pytest.mark.usefixtures("_path")
@pytest.mark.parametrize(("H", "G"), [(4, 1), (8, 8), (6, 2)])
def test_each_row_equals_one_step_of_its_own_recurrence(H: int, G: int) -> None:
    mixer = Mixer(H=H, P=5, N=9, G=G, T=len(ROUTES))
    state = filled(mixer)
    before = state.clone()
    out = poisoned(mixer.T, H, 5)
    with no_sync():
        state_update(state, mixer.inputs(LIMIT), plan(), out)
    for row, (source, target, track) in enumerate(ROUTES):
        one = slice(row, row + 1)
        outputs, states = ssd_sequential(
            mixer.x[one], mixer.dt[one], mixer.A, mixer.B[one], mixer.C[one], mixer.D, mixer.dt_bias, LIMIT,
            None if source < 0 else before[source],
        )  # fmt: skip
        torch.testing.assert_close(out[one], outputs, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(state[target], states[0], rtol=1e-11, atol=1e-11)
        if track >= 0:
            assert torch.equal(state[track], state[target]), "state and checkpoint cannot disagree"
    assert torch.equal(state[2], before[2]), "a moved state leaves its source alone"
    assert state[[0, 3, 5, 6, 13]].isnan().all(), "slots nobody named are left alone"


@pytest.mark.usefixtures("_path")
def test_a_row_has_the_same_bits_alone_and_among_others() -> None:
    mixer = Mixer(H=4, P=16, N=32, G=2, T=len(ROUTES), dtype=torch.float32)
    together, alone = filled(mixer), filled(mixer)
    out = torch.empty(mixer.T, 4, 16)
    state_update(together, mixer.inputs(LIMIT), plan(), out)
    for row, (source, target, track) in enumerate(ROUTES):
        one = slice(row, row + 1)
        single = Mixer(H=4, P=16, N=32, G=2, T=1, dtype=torch.float32)
        single.A, single.D, single.dt_bias = mixer.A, mixer.D, mixer.dt_bias
        single.x, single.dt, single.B, single.C = mixer.x[one], mixer.dt[one], mixer.B[one], mixer.C[one]
        result = torch.empty(1, 4, 16)
        route = SlotPlan.build(ints([source]), ints([target]), ints([track]), CPU)
        state_update(alone, single.inputs(LIMIT), route, result)
        assert torch.equal(result[0], out[row])
        assert torch.equal(alone[target], together[target])


def test_decoding_continues_a_prefill() -> None:
    mixer = Mixer(H=4, P=6, N=8, G=2, T=50)
    outputs, states = ssd_sequential(
        mixer.x, mixer.dt, mixer.A, mixer.B, mixer.C, mixer.D, mixer.dt_bias, LIMIT
    )
    state = strided_cache(3, 4, 6, 8)

    def rows(first: int, end: int) -> Mixer:
        part = Mixer(H=4, P=6, N=8, G=2, T=end - first)
        part.A, part.D, part.dt_bias = mixer.A, mixer.D, mixer.dt_bias
        part.x, part.dt = mixer.x[first:end], mixer.dt[first:end]
        part.B, part.C = mixer.B[first:end], mixer.C[first:end]
        return part

    out = poisoned(50, 4, 6)
    ssd_prefill(state, rows(0, 37).inputs(LIMIT), chunk_plan([PiecePlan(0, 37, -1, 1, {})], 16), out[:37])
    step = SlotPlan.build(ints([1]), ints([1]), ints([-1]), CPU)
    for t in range(37, 50):
        state_update(state, rows(t, t + 1).inputs(LIMIT), step, out[t : t + 1])
        torch.testing.assert_close(state[1], states[t], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(out, outputs, rtol=1e-10, atol=1e-10)


def test_a_half_precision_state_is_updated_in_float32_and_rounded_once() -> None:
    mixer = Mixer(H=4, P=6, N=8, G=1, T=1, dtype=torch.float32)
    state = torch.randn(3, 4, 6, 8, generator=torch.Generator().manual_seed(1)).half()
    exact = state.float()
    step = SlotPlan.build(ints([1]), ints([2]), ints([-1]), CPU)
    out, expected = torch.empty(1, 4, 6), torch.empty(1, 4, 6)
    state_update(state, mixer.inputs(LIMIT), step, out)
    state_update(exact, mixer.inputs(LIMIT), step, expected)
    assert torch.equal(out, expected)
    round_to_float16_(exact[2:], step.device_noise)
    assert torch.equal(state[2].float(), exact[2])
