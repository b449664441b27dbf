"""Rounding of a float16 state: unbiased, and the same in every place and by every implementation."""

import math

import numpy as np
import pytest
import torch

from mamba_kernels.invariant import recurrence_by_token
from mamba_kernels.scan_inputs import ScanInputs
from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.ssd_prefill import ssd_prefill
from mamba_kernels.state_update import state_update
from mamba_kernels.stochastic_rounding import BLOCK_ELEMENTS, noise_words, round_to_float16_
from testmodels.chunks import CPU, Mixer, PiecePlan, chunk_plan, ints

LIMIT = (0.0, float("inf"))


def words(depths: object, seed: int = 7) -> torch.Tensor:
    depth = ints(depths)
    return torch.from_numpy(noise_words(np.full_like(depth, seed), depth))


def rounded(values: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    out = values.clone()
    round_to_float16_(out, noise)
    return out


def by_definition(x: np.float32, word: int, element: int) -> float:
    """Round one number in exact integers: up if the random bits are below its distance."""
    random = (element * 0x9E3779B9 & 0xFFFFFFFF) ^ (word & 0xFFFFFFFF)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        random = (random ^ random >> shift) * factor & 0xFFFFFFFF
    size = abs(float(x))
    if not size < 65520:
        return math.copysign(math.inf, x) if size == size else math.nan
    # Steps of a binade are 2**-10 of its beginning, and 2**-24 below the normal numbers.
    step = max(2.0 ** (math.frexp(size)[1] - 11), 2.0**-24) if size else 2.0**-24
    whole, distance = divmod(size / step, 1)
    up = distance > ((random >> 9) + 0.5) * 2.0**-23
    if size >= 2.0**-14:
        up = distance * 2**13 + (random >> 19) >= 2**13
    return math.copysign(min((whole + up) * step, 65504.0), x)


SPECIAL = [
    0.0, -0.0, math.inf, -math.inf, math.nan, 65504.0, 65510.0, 65519.99, 65520.0, -65535.0, 65536.0, 3e38,
    1e-45, -1e-40, 2.0**-126, 2.0**-25, 2.0**-24, 1.5 * 2.0**-24, 2.0**-14,
    2.0**-14 - 2.0**-38, 2.0**-14 + 2.0**-37,
]  # fmt: skip


def every_kind(count: int) -> torch.Tensor:
    """Return float32 of any bits, of the ranges of normal and subnormal float16, and the special ones."""
    g = np.random.default_rng(1)
    bits = g.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    scaled = g.standard_normal(count) * 2.0 ** g.integers(-40, 17, count)
    values = np.where(np.arange(count) % 3 == 0, bits, scaled).astype(np.float32)
    values[: len(SPECIAL)] = SPECIAL
    return torch.from_numpy(values)


def test_a_number_becomes_what_the_definition_says() -> None:
    values, word = every_kind(100_000), words([5])
    got = rounded(values[None], word)[0]
    expected = [by_definition(x, int(word), at) for at, x in enumerate(values.numpy())]
    truth = torch.tensor(expected, dtype=torch.float64).float()
    torch.testing.assert_close(got, truth, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(got.signbit()[~got.isnan()], values.signbit()[~got.isnan()])
    torch.testing.assert_close(got.half().float(), got, rtol=0, atol=0, equal_nan=True)


def test_what_float16_has_stays() -> None:
    every = torch.from_numpy(np.arange(65536, dtype=np.uint16).view(np.float16)).float()
    got = rounded(every.expand(8, -1).contiguous(), words(range(8)))
    for row in got:
        torch.testing.assert_close(row, every, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("value", [1.0 + 2.0**-13, -0.7, 3.3e-4, 1e-6, -2.5e-8, 1e-9, 12345.678])
@pytest.mark.parametrize("over", ["depths", "elements", "seeds"])
def test_the_mean_is_the_number(value: float, over: str) -> None:
    """Within five standard errors of a coin with the probability of the distance."""
    count = 40_000
    at = np.arange(count, dtype=np.int32)
    noise = {
        "depths": lambda: words(at),
        "seeds": lambda: torch.from_numpy(noise_words(at, np.full_like(at, 9))),
        "elements": lambda: words([3]),
    }[over]()
    x = torch.full((len(noise), count // len(noise)), value)
    got = rounded(x, noise).double()
    exact = float(x[0, 0].double())
    low, high = float(got.min()), float(got.max())
    assert low <= exact <= high
    p = (exact - low) / (high - low)
    error = (high - low) * math.sqrt(p * (1 - p) / count)
    assert abs(float(got.mean()) - exact) <= 5 * error


def test_neighbouring_depths_and_elements_are_independent() -> None:
    ups = rounded(torch.full((400, 400), 1.0 + 2.0**-11), words(range(400))) > 1
    coin = ups.double() - 0.5
    for one, other in ((coin[1:], coin[:-1]), (coin[:, 1:], coin[:, :-1])):
        assert abs(float((one * other).mean())) < 5 * 0.25 / 400
    assert (coin.mean(0).abs() < 5 * 0.5 / 20).all(), "an element that always goes one way"
    assert (coin.mean(1).abs() < 5 * 0.5 / 20).all(), "a depth at which all go one way"


def test_increments_below_half_a_step_are_not_lost() -> None:
    """1 + 500 * 2**-13 in steps of 2**-10: rounding to nearest stays at 1 for ever."""
    h, near = torch.ones(1, 4096), torch.ones(1, 4096)
    for depth in range(500):
        h += 2.0**-13
        round_to_float16_(h, words([depth]))
        near = (near + 2.0**-13).half().float()
    assert (near == 1).all()
    assert abs(float(h.mean()) - (1 + 500 * 2.0**-13)) < 1e-3


def test_bits_depend_on_seed_depth_and_place_alone() -> None:
    g = torch.Generator().manual_seed(2)
    size = BLOCK_ELEMENTS // 3 + 5
    states, noise = torch.randn(7, size, generator=g), words(range(7))
    together = rounded(states, noise)
    for row in range(7):
        assert torch.equal(rounded(states[row : row + 1], noise[row : row + 1])[0], together[row])
    wide = torch.randn(1, 2 * BLOCK_ELEMENTS + 9, generator=g)
    whole = rounded(wide, noise[:1])
    assert torch.equal(rounded(wide[:, :1000].contiguous(), noise[:1]), whole[:, :1000])
    same = states[:1].expand(3, -1).contiguous()
    one, later, other = rounded(same, torch.cat([words([4]), words([5]), words([4], seed=8)]))
    assert not torch.equal(one, later)
    assert not torch.equal(one, other)


def test_float64_states_are_rounded_too() -> None:
    x = torch.randn(2, 300, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    got = rounded(x, words([1, 2]))
    assert got.dtype == torch.float64
    assert torch.equal(got, rounded(x.float(), words([1, 2])).double())


def test_a_step_stores_the_rounded_registers_and_the_same_in_the_checkpoint() -> None:
    mixer = Mixer(H=4, P=3, N=8, G=1, T=2, dtype=torch.float32)
    noise = words([11, 40])
    step = SlotPlan.build(ints([1, 2]), ints([1, 3]), ints([-1, 4]), CPU, noise.numpy())
    half = torch.randn(5, 4, 3, 8, generator=torch.Generator().manual_seed(4)).half()
    exact, out = half.float(), torch.empty(2, 4, 3)
    state_update(half, mixer.inputs(LIMIT), step, out)
    state_update(exact, mixer.inputs(LIMIT), step, out)
    assert torch.equal(half[[1, 3]].float(), rounded(exact[[1, 3]], noise))
    assert torch.equal(half[4], half[3])
    assert not torch.equal(half[[1, 3]], exact[[1, 3]].half()), "rounded to nearest"


def test_a_prefill_rounds_each_stored_state_by_its_depth() -> None:
    mixer = Mixer(H=4, P=3, N=8, G=1, T=50, dtype=torch.float32)
    pieces = [PiecePlan(0, 30, -1, 1, {16: 2, 20: 3}), PiecePlan(8, 20, 5, 4, {16: 6})]
    noise = torch.cat([words(range(1, 31)), words(range(9, 29), seed=8)])
    half, exact = torch.zeros(7, 4, 3, 8, dtype=torch.float16), torch.zeros(7, 4, 3, 8)
    y = torch.empty(50, 4, 3)
    plan = chunk_plan(pieces, 16, noise.numpy())
    ssd_prefill(half, mixer.inputs(LIMIT), plan, y)
    ssd_prefill(exact, mixer.inputs(LIMIT), plan, y)
    for slot, row in ((2, 15), (3, 19), (1, 29), (6, 37), (4, 49)):
        assert torch.equal(half[slot].float(), rounded(exact[slot][None], noise[row : row + 1])[0]), slot


def test_going_on_from_a_checkpoint_gives_the_bits_of_the_uninterrupted_run() -> None:
    """The depths are those of the sequence, not of the piece: token by token, and resumed at 5."""
    mixer = Mixer(H=4, P=3, N=8, G=1, T=12, dtype=torch.float32)
    every = words(range(1, 13)).numpy()
    whole, parts = (torch.zeros(4, 4, 3, 8, dtype=torch.float16) for _ in range(2))
    y, z = torch.empty(12, 4, 3), torch.empty(12, 4, 3)
    inputs = mixer.inputs(LIMIT)
    recurrence_by_token(whole, inputs, None, chunk_plan([PiecePlan(0, 12, -1, 1, {5: 2})], 4, every), y)
    for done, end, source in ((0, 5, -1), (5, 12, 3)):
        rows = slice(done, end)
        some = ScanInputs(
            inputs.x[rows], inputs.dt[rows], inputs.A, inputs.B[rows], inputs.C[rows], inputs.D,
            inputs.dt_bias, LIMIT,
        )  # fmt: skip
        target = 3 if done == 0 else 1
        piece = PiecePlan(done, end - done, source, target, {})
        recurrence_by_token(parts, some, None, chunk_plan([piece], 4, every[rows]), z[rows])
    assert torch.equal(parts[3], whole[2])
    assert torch.equal(parts[1], whole[1])
    assert torch.equal(y, z)
