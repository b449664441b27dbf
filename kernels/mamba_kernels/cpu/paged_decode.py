"""Attention of decoding sequences over their pages in one call."""

import ctypes

import torch

from mamba_kernels.arguments import check, check_plan
from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.packed_linear import CPU, KINDS
from mamba_kernels.cpu.structures import KvWrite, PagedDecode, PagedExtend
from mamba_kernels.fp8_pages import Fp8Pages, Pages
from mamba_kernels.paged_attention import AttentionPlan

MOST_HEAD_DIM = 576
"""Largest size of a head: a latent row of Kimi-Linear."""


class PagedDecoder:
    """Computes the attention of decoding sequences in one layer, in one call of the C++ kernels.

    Heads have at most MOST_HEAD_DIM elements.
    """

    def __init__(self, library: Library, *, heads: int, kv_heads: int, head_dim: int, scale: float) -> None:
        self._run = library.paged_decode
        self._shape = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "scale": scale}
        self._call = PagedDecode(**self._shape)
        self._address = ctypes.addressof(self._call)

    def place(self, call: PagedDecode, kv: Pages) -> None:
        """Write the shape of this layer, and the addresses of its keys and values, into `call`.

        If the pages are FP8, the caller sets the type of the rows, `call.kind`.
        """
        for name, value in self._shape.items():
            setattr(call, name, value)
        set_pages(call, kv)

    def __call__(self, query: torch.Tensor, kv: Pages, plan: AttentionPlan, out: torch.Tensor) -> None:
        """Compute softmax(scale q K^T) V over the contexts of the plan's n decodes.

        `query` is [n, heads, head_dim] (rows may be strided) in the type of kv [pages, 2, page_size,
        kv_heads, head_dim], unless that is FP8; the keys and the values of a page are dense; `out` is like
        query, dense, written. Raises WrongArgument.
        """
        call = self._call
        check_paged(call, query, kv, out, plan.decodes)
        call.kind = KINDS[query.dtype]
        call.query, call.query_stride = query.data_ptr(), query.stride(0)
        set_pages(call, kv)
        call.page_table, call.page_table_stride = plan.page_table.data_ptr(), plan.page_table.stride(0)
        call.table_row, call.context_len = plan.table_row.data_ptr(), plan.context_len.data_ptr()
        call.out = out.data_ptr()
        call.rows = plan.decodes
        self._run(self._address)


def check_paged(
    call: PagedDecode | PagedExtend, query: torch.Tensor, kv: Pages, out: torch.Tensor, rows: int
) -> None:
    """Raise WrongArgument unless `call` can take these tensors for `rows` rows."""
    check_pages(kv, call.kv_heads, call.head_dim)
    dtypes = KINDS if isinstance(kv, Fp8Pages) else (kv.dtype,)
    for name, tensor, dense_from in (("query", query, 1), ("out", out, 0)):
        check_plan(name, tensor, rows)
        shape = (rows, call.heads, call.head_dim)
        check(name, tensor, shape, dtypes=dtypes, device=CPU, dense_from=dense_from)
        dtypes = (query.dtype,)


def check_pages(kv: Pages, kv_heads: int, head_dim: int) -> None:
    """Raise WrongArgument unless the kernels can read pages with such heads."""
    shape = (None, 2, None, kv_heads, head_dim)
    if isinstance(kv, torch.Tensor):
        check("kv", kv, shape, dtypes=KINDS, device=CPU, dense_from=2)
        return
    check("kv", kv.numbers, shape, dtypes=(torch.uint8,), device=CPU, dense_from=2)
    check("scales", kv.scales, kv.shape[:4], dtypes=(torch.uint8,), device=CPU, dense_from=2)


def set_pages(call: PagedDecode | PagedExtend | KvWrite, kv: Pages) -> None:
    """Write the page size, and the addresses and strides of keys, values and scales, into `call`.

    `call.kind` becomes the type of the pages, unless that is FP8: then the caller sets the type of the rows.
    """
    call.page_size = kv.shape[2]
    if isinstance(kv, torch.Tensor):
        call.kind, numbers = KINDS[kv.dtype], kv
    else:
        numbers, scales = kv.numbers, kv.scales
        call.scales, call.scale_stride, call.scale_offset = (
            scales.data_ptr(), scales.stride(0), scales.stride(1),
        )  # fmt: skip
    call.kv, call.page_stride, call.value_offset = numbers.data_ptr(), numbers.stride(0), numbers.stride(1)
