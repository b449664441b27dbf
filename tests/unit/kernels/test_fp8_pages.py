"""Pages of FP8: what is stored, what is read back, and attention that reads it, in every backend."""

from collections.abc import Callable

import pytest
import torch

from mamba_kernels.fp8_pages import NUMBER, Fp8Pages, rounded, written_back
from mamba_kernels.invariant import attention_by_row
from mamba_kernels.kv_write import kv_write
from mamba_kernels.paged_attention import paged_attention
from testmodels.paged import SCALE, PagedBatch

EDGES = [0.0, -0.0, 448.0, 449.0, 464.0, 500.0, 1.0, 1.0625, -1.1875, 2**-6, 2**-9, 2**-10, 3 * 2**-10, 1e-3]


def whole(kv: Fp8Pages, dtype: torch.dtype) -> torch.Tensor:
    """Return the pages in the type `dtype`, with the same numbers."""
    return written_back(kv.numbers.contiguous(), kv.scales.contiguous(), dtype)


def test_a_row_is_rounded_to_nearest_under_a_power_of_two_and_nothing_is_saturated() -> None:
    rows = torch.randn(200, 64) * torch.logspace(-20, 20, 200)[:, None]
    rows[0, : len(EDGES)] = torch.tensor(EDGES)
    numbers, scales = rounded(rows)
    sizes = numbers.view(NUMBER).float().abs()
    assert sizes.amax(1).gt(223).all()
    assert sizes.amax(1).le(448).all()
    powers = torch.exp2(scales.float() - 127 - 8)[:, None]
    expected = (rows.double() / powers).to(torch.float32).to(NUMBER)
    assert torch.equal(numbers, expected.view(torch.uint8))
    worst = (written_back(numbers, scales, torch.float32) - rows).abs() / rows.abs().amax(1, keepdim=True)
    assert worst.max() <= 2**-4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_number_read_back_is_the_same_in_every_type(dtype: torch.dtype) -> None:
    rows = torch.randn(40, 32) * torch.logspace(-3, 3, 40)[:, None]
    stored = rounded(rows)
    got = written_back(*stored, dtype)
    assert torch.equal(got.double(), written_back(*stored, torch.float32).double())


def test_rows_of_zeros_and_rows_that_are_not_finite_stay_so() -> None:
    rows = torch.zeros(4, 8)
    rows[1, 3], rows[2, 0], rows[3, 7] = torch.nan, torch.inf, -torch.inf
    back = written_back(*rounded(rows), torch.bfloat16)
    assert not back[0].any()
    assert back[1:].isnan().all()
    zeroed = torch.zeros(1, 8, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8)
    assert not written_back(*zeroed, torch.float32).any(), "memory that was never written"


@pytest.mark.parametrize(("attend", "page_size"), [(paged_attention, 1), (attention_by_row, 4)])
def test_attention_over_fp8_pages_is_attention_over_what_they_hold(
    attend: Callable[..., None], page_size: int
) -> None:
    batch = PagedBatch([1, 1, 9], [17, 70, 30], page_size=page_size, width=8, dtype=torch.float32, fp8=True)
    narrow, plan = batch.kv, batch.plan()
    got, expected = torch.empty_like(batch.query), torch.empty_like(batch.query)
    attend(batch.query, narrow, SCALE, plan, got)
    attend(batch.query, whole(narrow, torch.float32), SCALE, plan, expected)
    assert torch.equal(got, expected)
    torch.testing.assert_close(got.double(), batch.expected(), rtol=0.2, atol=0.2)


def test_a_write_goes_to_its_page_and_nowhere_else() -> None:
    kv = Fp8Pages(*(torch.full((5, 2, 4, 2, *rest), 7, dtype=torch.uint8) for rest in ((6,), ())))
    key, value = torch.randn(3, 2, 6), torch.randn(3, 2, 6)
    kv_write(kv, key, value, torch.tensor([4, 1, 4]), torch.tensor([3, 0, 0]))
    for row, (page, offset) in enumerate([(4, 3), (1, 0), (4, 0)]):
        for half, rows in enumerate((key, value)):
            numbers, scales = rounded(rows[row])
            assert torch.equal(kv.numbers[page, half, offset], numbers)
            assert torch.equal(kv.scales[page, half, offset], scales)
            kv.scales[page, half, offset], kv.numbers[page, half, offset] = 7, 7
    assert kv.scales.eq(7).all()
    assert kv.numbers.eq(7).all()
