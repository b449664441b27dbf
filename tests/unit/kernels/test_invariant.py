"""The kernels of batch-invariant mode compute what the fast ones compute, and do it row by row."""

import numpy as np
import pytest
import torch

from mamba_kernels.conv1d_prefill import conv1d_prefill
from mamba_kernels.gated_norm import gated_norm
from mamba_kernels.invariant import (
    attention_by_row,
    convolution_by_tap,
    gated_norm_by_row,
    recurrence_by_token,
)
from mamba_kernels.paged_attention import AttentionPlan, paged_attention
from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.ssd_prefill import ssd_prefill
from testmodels.chunks import CPU, Mixer, PiecePlan, chunk_plan, ints, strided_cache

EXACT = {"rtol": 1e-10, "atol": 1e-10}
LIMIT = (0.0, float("inf"))
PIECES = [
    PiecePlan(0, 5, -1, 1, {}),
    PiecePlan(3, 40, 2, 2, {16: 7, 33: 8}),
    PiecePlan(0, 1, -1, 3, {}),
    PiecePlan(20, 17, 6, 4, {32: 9}),
]
TOKENS = sum(piece.length for piece in PIECES)


def filled(*shape: int, seed: int) -> torch.Tensor:
    """Return a strided cache whose read slots hold numbers, and the others NaN."""
    cache = strided_cache(12, *shape)
    g = torch.Generator().manual_seed(seed)
    for slot in (2, 6):
        cache[slot] = torch.randn(*shape, generator=g, dtype=torch.float64)
    return cache


def test_the_recurrence_leaves_the_outputs_states_and_checkpoints_of_the_chunked_scan() -> None:
    mixer = Mixer(H=6, P=5, N=7, G=2, T=TOKENS)
    plan = chunk_plan(PIECES, 16)
    fast, exact = filled(6, 5, 7, seed=1), filled(6, 5, 7, seed=1)
    y, z = torch.empty_like(mixer.x), torch.empty_like(mixer.x)
    ssd_prefill(fast, mixer.inputs(LIMIT), plan, y)
    recurrence_by_token(exact, mixer.inputs(LIMIT), None, plan, z)
    torch.testing.assert_close(z, y, **EXACT)
    torch.testing.assert_close(exact, fast, equal_nan=True, **EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_prefilled_state_has_the_bits_of_the_decoded_one(dtype: torch.dtype) -> None:
    """Also where the stored type is narrower than the sums."""
    mixer = Mixer(H=4, P=3, N=8, G=1, T=9, dtype=torch.float32)
    inputs = mixer.inputs(LIMIT)
    whole, stepped = (torch.zeros(4, 4, 3, 8, dtype=dtype) for _ in range(2))
    y, z = torch.empty(9, 4, 3), torch.empty(9, 4, 3)
    plan = chunk_plan([PiecePlan(0, 9, -1, 1, {4: 2})], 4)
    recurrence_by_token(whole, inputs, None, plan, y)
    for t in range(9):
        row = type(inputs)(
            inputs.x[t : t + 1], inputs.dt[t : t + 1], inputs.A, inputs.B[t : t + 1],
            inputs.C[t : t + 1], inputs.D, inputs.dt_bias, LIMIT,
        )  # fmt: skip
        track = 2 if t == 3 else -1
        slots = SlotPlan.build(ints([1 if t else -1]), ints([1]), ints([track]), CPU)
        recurrence_by_token(stepped, row, slots, None, z[t : t + 1])
    assert torch.equal(y, z)
    assert torch.equal(whole, stepped)


def test_the_convolution_leaves_the_outputs_and_windows_of_the_fast_one() -> None:
    g = torch.Generator().manual_seed(2)
    x, weight = (torch.randn(n, 10, generator=g, dtype=torch.float64) for n in (TOKENS, 4))
    bias = torch.randn(10, generator=g, dtype=torch.float64)
    plan = chunk_plan(PIECES, 16)
    fast, exact = filled(3, 10, seed=3), filled(3, 10, seed=3)
    y = conv1d_prefill(x, weight, bias, fast, plan)
    torch.testing.assert_close(convolution_by_tap(x, weight, bias, exact, None, plan), y, **EXACT)
    assert torch.equal(exact.nan_to_num(), fast.nan_to_num())


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize(("weighted", "first"), [(True, False), (True, True), (False, False)])
def test_the_gated_norm_has_the_value_of_the_fast_one(groups: int, weighted: bool, first: bool) -> None:
    g = torch.Generator().manual_seed(4)
    y, gate = (torch.randn(9, 32, generator=g, dtype=torch.float64) for _ in range(2))
    weight = torch.randn(32, generator=g, dtype=torch.float64) if weighted else None
    expected = gated_norm(y, gate, weight, 1e-5, groups, norm_first=first)
    got = gated_norm_by_row(y, gate, weight, 1e-5, groups, norm_first=first)
    torch.testing.assert_close(got, expected, **EXACT)


@pytest.mark.parametrize("page_size", [1, 16])
def test_attention_has_the_value_of_the_fast_one_and_reads_nothing_unwritten(page_size: int) -> None:
    g = torch.Generator().manual_seed(5)
    contexts, decodes, news = [1, 70, 200, 65, 130], 2, [1, 1, 200, 30, 2]
    width = -(-max(contexts) // page_size)
    table = np.full((len(contexts), width), -1, np.int32)
    kv = torch.full((len(contexts) * width + 1, 2, page_size, 2, 8), float("nan"), dtype=torch.float64)
    for row, context in enumerate(contexts):
        for position in range(context):
            table[row, position // page_size] = page = 1 + row * width + position // page_size
            kv[page, :, position % page_size] = torch.randn(2, 2, 8, generator=g, dtype=torch.float64)
    starts = ints(np.cumsum([0, *news]))
    plan = AttentionPlan.build(
        decodes=decodes, query_start=starts, context_len=ints(contexts), page_table=torch.from_numpy(table),
        page_size=page_size, device=CPU,
    )  # fmt: skip
    query = torch.randn(sum(news), 6, 8, generator=g, dtype=torch.float64)
    fast, exact = torch.empty_like(query), torch.empty_like(query)
    paged_attention(query, kv, 0.3, plan, fast)
    attention_by_row(query, kv, 0.3, plan, exact)
    torch.testing.assert_close(exact, fast, **EXACT)
