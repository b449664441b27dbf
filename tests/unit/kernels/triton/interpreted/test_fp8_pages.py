"""Pages of FP8 in Triton: the bytes of the reference are stored, and attention reads what they hold."""

import pytest
import torch

from mamba_kernels.fp8_pages import Fp8Pages, written_back
from mamba_kernels.kv_write.reference import kv_write as reference_write
from mamba_kernels.kv_write.triton import kv_write
from mamba_kernels.paged_attention import triton as kernels
from mamba_kernels.paged_attention.triton import paged_attention
from matrix_size import LARGE
from testmodels.paged import PagedBatch, fp8_pages


@pytest.mark.parametrize(
    ("heads", "kv_heads", "page_size", "width", "dtype"),
    [
        (6, 2, 5, 16, torch.bfloat16),
        (2, 1, 1, 40, torch.float16),
        (4, 2, 16, 72, torch.float32),
        (4, 1, 16, 272, torch.bfloat16),
    ][: None if LARGE else 1],
)
def test_attention_equals_attention_over_wider_pages_with_the_same_numbers(
    monkeypatch: pytest.MonkeyPatch, heads: int, kv_heads: int, page_size: int, width: int, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(kernels, "PROGRAMS", 4)
    batch = PagedBatch(
        [1, 1, 12], [270, 9, 20], heads=heads, kv_heads=kv_heads, page_size=page_size, width=width,
        dtype=dtype, fp8=True,
    )  # fmt: skip
    assert isinstance(batch.kv, Fp8Pages)
    got = batch.attend(paged_attention)
    batch.kv = written_back(batch.kv.numbers.contiguous(), batch.kv.scales.contiguous(), dtype)
    assert torch.equal(got, batch.attend(paged_attention))


def test_rows_are_stored_as_the_same_bytes_as_by_the_reference() -> None:
    rows = torch.randn(9, 2, 3, 10) * torch.logspace(-20, 20, 9)[:, None, None, None]
    rows *= torch.exp2(torch.randint(-16, 1, rows.shape))
    rows[3, 0, 0, 2], rows[4, 1, 2, 9], rows[5] = torch.nan, -torch.inf, 0
    page, offset = torch.arange(9) % 7 + 1, torch.arange(9) // 7
    ours, theirs = (fp8_pages(8, 2, 3, 10) for _ in range(2))
    kv_write(ours, rows[:, 0], rows[:, 1], page, offset)
    reference_write(theirs, rows[:, 0], rows[:, 1], page, offset)
    assert torch.equal(ours.scales, theirs.scales)
    assert torch.equal(ours.numbers, theirs.numbers)
