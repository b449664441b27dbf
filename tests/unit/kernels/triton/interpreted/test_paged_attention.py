"""Triton's attention over scattered pages equals plain attention in float64; keys go to their pages alone."""

import numpy as np
import pytest
import torch

from mamba_kernels.kv_write.reference import kv_write as reference_write
from mamba_kernels.kv_write.triton import kv_write
from mamba_kernels.paged_attention import triton as kernels
from mamba_kernels.paged_attention.triton import paged_attention
from mamba_kernels.triton_support import WrongArgument
from matrix_size import LARGE
from testmodels.chunks import strided_cache
from testmodels.paged import SCALE, PagedBatch

NEWS = [1, 1, 1, 3, 63, 2]
CONTEXTS = [1, 100, 520, 3, 64, 257]
"""Decodes of one split and of several; pieces alone, and after a context."""


@pytest.fixture(autouse=True)
def few_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the splits: idle programs take the interpreter as long as others."""
    monkeypatch.setattr(kernels, "PROGRAMS", 4)


def close(got: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    step = max(torch.finfo(dtype).eps, 4e-7)
    torch.testing.assert_close(got.double(), expected, rtol=4 * step, atol=4 * step)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "page_size", "width", "dtype"),
    [
        (4, 4, 16, 16, torch.float32),
        (6, 2, 1, 6, torch.float32),
        (10, 2, 5, 40, torch.bfloat16),
        (33, 1, 64, 16, torch.float16),
        (4, 2, 16, 72, torch.float32),
        (4, 2, 16, 72, torch.float16),
        (4, 1, 16, 272, torch.bfloat16),
    ][:: 1 if LARGE else 2],
)
def test_decodes_and_pieces_equal_plain_attention(
    heads: int, kv_heads: int, page_size: int, width: int, dtype: torch.dtype
) -> None:
    batch = PagedBatch(
        NEWS, CONTEXTS, heads=heads, kv_heads=kv_heads, page_size=page_size, width=width, dtype=dtype
    )
    close(batch.attend(paged_attention), batch.expected(), dtype)


@pytest.mark.parametrize(("news", "contexts"), [([1, 1], [300, 9]), ([40, 7], [40, 99])])
def test_a_sequence_has_the_same_bits_alone_and_among_others(news: list[int], contexts: list[int]) -> None:
    crowd = PagedBatch(news, contexts, width=16, dtype=torch.float32)
    together = crowd.attend(paged_attention)
    for sequence in range(2):
        rows = slice(int(crowd.query_start[sequence]), int(crowd.query_start[sequence + 1]))
        alone = PagedBatch([news[sequence]], [contexts[sequence]], width=16, dtype=torch.float32)
        alone.query, alone.kv = crowd.query[rows], crowd.kv
        alone.table = crowd.table[sequence : sequence + 1]
        assert torch.equal(alone.attend(paged_attention), together[rows])


@pytest.mark.parametrize("programs", [1, 4])
def test_a_padding_row_without_context_becomes_zero_and_leaves_the_others_alone(
    monkeypatch: pytest.MonkeyPatch, programs: int
) -> None:
    monkeypatch.setattr(kernels, "PROGRAMS", programs)
    batch = PagedBatch([1, 1], [70, 5], width=16, dtype=torch.float32)
    before = batch.attend(paged_attention)
    batch.contexts = [70, 0]
    padded = batch.attend(paged_attention)
    assert torch.equal(padded[0], before[0])
    assert not padded[1].any()


def test_a_page_beyond_two_gigabytes_of_elements_is_found() -> None:
    """Only the pages that are named are touched: the rest of the reserved memory is never backed."""
    page = 2 * 4 * 1 * 16
    pages = (1 << 31) // page + 3
    storage = torch.empty(pages * page, dtype=torch.float16)
    far = storage.view(pages, 2, 4, 1, 16)
    batch = PagedBatch([1, 2], [5, 3], heads=2, kv_heads=1, width=16, page_size=4, dtype=torch.float16)
    near, moved = batch.attend(paged_attention), pages - len(batch.kv)
    for number in range(1, len(batch.kv)):
        far[number + moved] = batch.kv[number]
    batch.kv, batch.table = far, batch.table + (batch.table >= 0) * np.int32(moved)
    assert torch.equal(batch.attend(paged_attention), near)


def test_writes_go_to_their_page_and_nowhere_else() -> None:
    ours, theirs = (strided_cache(5, 2, 4, 3, 10, dtype=torch.float32) for _ in range(2))
    rows = torch.randn(7, 5, 3, 10)
    key, value = rows[:, 1], rows[:, 4]
    pages, offsets = torch.tensor([4, 1, 4, 2, 2, 3, 0]), torch.tensor([3, 0, 0, 1, 2, 3, 0])
    kv_write(ours, key, value, pages, offsets)
    reference_write(theirs, key, value, pages, offsets)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def test_keys_are_stored_in_the_type_of_the_cache() -> None:
    kv = torch.zeros(2, 2, 4, 1, 3, dtype=torch.bfloat16)
    key = torch.full((1, 1, 3), 1.0 + 2**-12)
    kv_write(kv, key, -key, torch.tensor([1]), torch.tensor([2]))
    assert kv[1, :, 2, 0].tolist() == [[1.0] * 3, [-1.0] * 3]


def test_no_rows_are_no_launch() -> None:
    kv = torch.zeros(2, 2, 4, 1, 3)
    none = torch.zeros(0, 1, 3)
    kv_write(kv, none, none, torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    assert not kv.any()


@pytest.mark.parametrize(
    ("heads", "width", "named"),
    [(3, 16, "query has 3 heads"), (2, 300, "kv has heads of 300"), (130, 16, "65 heads for each")],
)
def test_what_the_kernels_cannot_attend_to_is_named(heads: int, width: int, named: str) -> None:
    batch = PagedBatch([1], [4], heads=2, kv_heads=2, width=width, dtype=torch.float32)
    query = torch.zeros(1, heads, width)
    with pytest.raises(WrongArgument, match=named):
        paged_attention(query, batch.kv, SCALE, batch.plan(), torch.empty_like(query))
