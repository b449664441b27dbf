"""A gated short convolution in C++ equals the reference, wherever its windows lie and on any threads."""

from collections.abc import Callable

import pytest
import torch

from mamba_kernels.arguments import WrongArgument
from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.short_conv import ShortConvCalls
from mamba_kernels.short_conv import short_conv_prefill, short_conv_update
from mamba_kernels.slot_plan import SlotPlan
from testmodels.chunks import CPU, PiecePlan, chunk_plan, ints, poisoned
from testmodels.short_conv import ShortConvRows

ROUTES = [(1, 1, -1), (2, 7, 8), (-1, 9, 10), (4, 4, 11), (3, 12, -1)]
"""(slot_in, slot_out, track): in place, moved and tracked, from zero, in place and tracked, moved."""
PIECES = [
    PiecePlan(done=0, length=2, slot_in=-1, slot_out=5, checkpoints={1: 14}),
    PiecePlan(done=0, length=63, slot_in=-1, slot_out=6, checkpoints={16: 9, 50: 10, 63: 11}),
    PiecePlan(done=37, length=100, slot_in=1, slot_out=1, checkpoints={38: 15, 64: 12, 101: 13}),
    PiecePlan(done=64, length=1, slot_in=2, slot_out=2, checkpoints={65: 8}),
]
TOTAL = sum(piece.length for piece in PIECES)
SIZES = [(1, 4), (63, 2), (48, 3), (257, 3), (16, 7)]
"""Channels and taps."""
Run = Callable[[ShortConvRows, Library], torch.Tensor]


def slots(rows: slice = slice(None)) -> SlotPlan:
    return SlotPlan.build(*(ints(each) for each in zip(*ROUTES[rows], strict=True)), CPU)


def decode(mixer: ShortConvRows, library: Library, rows: slice = slice(None)) -> torch.Tensor:
    plan = slots(rows)
    out = poisoned(plan.routes.shape[1], mixer.channels, dtype=mixer.rows.dtype)
    ShortConvCalls(library, mixer.weight, mixer.bias).decode(mixer.rows[rows], mixer.window, plan, out)
    return out


def prefill(
    mixer: ShortConvRows, library: Library, some: list[PiecePlan] = PIECES, rows: slice = slice(None)
) -> torch.Tensor:
    plan = chunk_plan(some, 64)
    out = poisoned(plan.tokens, mixer.channels, dtype=mixer.rows.dtype)
    ShortConvCalls(library, mixer.weight, mixer.bias).prefill(mixer.rows[rows], mixer.window, plan, out)
    return out


@pytest.mark.parametrize(("run", "count"), [(decode, len(ROUTES)), (prefill, TOTAL)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize(("channels", "taps"), SIZES)
def test_a_call_equals_the_reference(
    library: Library, channels: int, taps: int, dtype: torch.dtype, tolerance: float, run: Run, count: int
) -> None:
    mixer = ShortConvRows(count, channels=channels, taps=taps, dtype=dtype, biased=channels != 63)
    # The inputs of the convolution are rounded as windows are: the reference computes them in the same type.
    rows, weight, bias, window = mixer.rows, mixer.weight, mixer.bias, mixer.window.clone()
    if run is decode:
        expected = short_conv_update(rows, weight, bias, window, slots())
    else:
        expected = short_conv_prefill(rows, weight, bias, window, chunk_plan(PIECES, 64))
    out = run(mixer, library)
    torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(mixer.window, window, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_alone_among_others_and_in_a_prompt(
    library: Library, threads: int, dtype: torch.dtype
) -> None:
    """Or a hit in the cache would change what a sequence says."""
    together, alone, stepped = (ShortConvRows(TOTAL, channels=33, taps=3, dtype=dtype) for _ in range(3))
    library.set_threads(threads)
    out, first = prefill(together, library), 0
    library.set_threads(1)
    for piece in PIECES:
        some = slice(first, first + piece.length)
        assert torch.equal(prefill(alone, library, [piece], some), out[some])
        first = some.stop
    calls = ShortConvCalls(library, stepped.weight, stepped.bias)
    some, one = slice(2, 65), torch.empty(1, 33, dtype=dtype)
    for t in range(some.start, some.stop):
        plan = SlotPlan.build(*(ints([each]) for each in (6 if t > some.start else -1, 6, -1)), CPU)
        calls.decode(stepped.rows[t : t + 1], stepped.window, plan, one)
        assert torch.equal(one[0], out[t])
    assert torch.equal(stepped.window[6], together.window[6])


def test_tensors_that_do_not_fit_are_refused(library: Library) -> None:
    mixer = ShortConvRows(5, channels=8, taps=3, dtype=torch.float32)
    calls = ShortConvCalls(library, mixer.weight, mixer.bias)
    out = torch.empty(5, 8)
    with pytest.raises(WrongArgument, match="rows"):
        calls.decode(mixer.rows[:, 1:], mixer.window, slots(), out)
    with pytest.raises(WrongArgument, match="window"):
        calls.decode(mixer.rows, mixer.window[:, 1:], slots(), out)
    with pytest.raises(WrongArgument, match="out"):
        calls.decode(mixer.rows, mixer.window, slots(), out.double())
    with pytest.raises(WrongArgument, match="bias"):
        ShortConvCalls(library, mixer.weight, torch.zeros(7))
