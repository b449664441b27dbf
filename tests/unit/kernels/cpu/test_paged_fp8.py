"""Pages of FP8 in C++: the bytes of the reference are stored, and attention has the bits of wider pages."""

import pytest
import torch

from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.paged_decode import PagedDecoder
from mamba_kernels.cpu.paged_extend import PagedExtender
from mamba_kernels.cpu.row_operations import PageWriter
from mamba_kernels.fp8_pages import written_back
from mamba_kernels.kv_write import kv_write
from testmodels.chunks import poisoned
from testmodels.paged import SCALE, PagedBatch, fp8_pages

pytestmark = pytest.mark.matrix_unit
SHAPES = [(4, 2, 64, 16), (3, 1, 63, 1)]
"""Heads, KV heads, width of a head, tokens of a page."""


def attended(library: Library, batch: PagedBatch) -> torch.Tensor:
    rows, heads, width = batch.query.shape
    shape = {"heads": heads, "kv_heads": batch.kv.shape[3], "head_dim": width, "scale": SCALE}
    out, plan, cut = poisoned(rows, heads, width, dtype=batch.query.dtype), batch.plan(), batch.decodes
    PagedDecoder(library, **shape)(batch.query[:cut], batch.kv, plan, out[:cut])
    PagedExtender(library, **shape)(batch.query[cut:], batch.kv, plan, out[cut:])
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "kv_heads", "width", "page_size"), SHAPES)
def test_attention_has_the_bits_of_wider_pages_with_the_same_numbers(
    library: Library, heads: int, kv_heads: int, width: int, page_size: int, dtype: torch.dtype
) -> None:
    batch = PagedBatch(
        [1, 1, 3, 20], [1, 100, 70, 20], heads=heads, kv_heads=kv_heads, width=width, page_size=page_size,
        dtype=dtype, fp8=True,
    )  # fmt: skip
    got = attended(library, batch)
    batch.kv = written_back(batch.kv.numbers.contiguous(), batch.kv.scales.contiguous(), dtype)
    assert torch.equal(got, attended(library, batch))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [64, 63])
def test_rows_are_stored_as_the_same_bytes_as_by_the_reference(
    library: Library, width: int, dtype: torch.dtype
) -> None:
    rows = torch.randn(40, 3 * width + 3) * torch.logspace(-20, 20, 40)[:, None]
    rows *= torch.exp2(torch.randint(-16, 1, rows.shape))
    rows[3, 2], rows[4, width], rows[5] = torch.nan, torch.inf, 0
    key = rows.to(dtype)[:, : 3 * width].unflatten(1, (3, width))
    value = key.flip(0)
    page, offset = torch.arange(40) % 7 + 1, torch.arange(40) // 7
    ours, theirs = (fp8_pages(8, 6, 3, width) for _ in range(2))
    PageWriter(library)(ours, key, value, page, offset)
    kv_write(theirs, key, value, page, offset)
    assert torch.equal(ours.scales, theirs.scales)
    assert torch.equal(ours.numbers, theirs.numbers)
