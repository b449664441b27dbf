"""Attention of the new tokens of prompts over their pages in one call."""

import ctypes

import torch

from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.packed_linear import KINDS
from mamba_kernels.cpu.paged_decode import check_paged, set_pages
from mamba_kernels.cpu.structures import PagedExtend
from mamba_kernels.fp8_pages import Pages
from mamba_kernels.paged_attention import AttentionPlan


class PagedExtender:
    """Computes the attention of pieces of prompts in one layer, in one call of the C++ kernels."""

    def __init__(self, library: Library, *, heads: int, kv_heads: int, head_dim: int, scale: float) -> None:
        self._run = library.paged_extend
        self._call = PagedExtend(heads=heads, kv_heads=kv_heads, head_dim=head_dim, scale=scale)
        self._address = ctypes.addressof(self._call)

    def __call__(self, query: torch.Tensor, kv: Pages, plan: AttentionPlan, out: torch.Tensor) -> None:
        """Compute softmax(scale q K^T) V, causal, over the contexts of the plan's prefill pieces.

        `query` is [T, heads, head_dim], the rows of the pieces alone (they may be strided), in the type of kv
        [pages, 2, page_size, kv_heads, head_dim], unless that is FP8; the keys and the values of a page are
        dense; `out` is like query, dense, written. Raises WrongArgument.
        """
        call, first, table = self._call, plan.decodes, plan.page_table
        check_paged(call, query, kv, out, plan.tokens - first)
        call.query, call.query_stride = query.data_ptr(), query.stride(0)
        set_pages(call, kv)
        call.page_table, call.page_table_stride = table.data_ptr(), table.stride(0)
        call.table_row = plan.table_row.data_ptr() + 4 * first
        call.context_len = plan.context_len.data_ptr() + 4 * first
        call.piece_start = plan.query_start.data_ptr() + 4 * first
        call.out, call.kind = out.data_ptr(), KINDS[query.dtype]
        call.pieces = len(plan.context_len) - first
        self._run(self._address)
