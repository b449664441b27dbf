"""Attention of decoding sequences over their pages, in one call."""

import ctypes

import torch

from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.packed_linear import KINDS
from mamba_kernels.cpu.structures import PagedDecode
from mamba_kernels.paged_attention import AttentionPlan

MOST_HEAD_DIM = 256


class PagedDecoder:
    """The call for one attention layer. head_dim: at most MOST_HEAD_DIM."""

    def __init__(self, library: Library, *, heads: int, kv_heads: int, head_dim: int, scale: float) -> None:
        self._run = library.paged_decode
        self._shape = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "scale": scale}
        self._call = PagedDecode(**self._shape)
        self._address = ctypes.addressof(self._call)

    def place(self, call: PagedDecode, kv: torch.Tensor) -> None:
        """Make `call` one of this layer, with its keys and values."""
        for name, value in self._shape.items():
            setattr(call, name, value)
        pages_at(call, kv)

    def __call__(self, query: torch.Tensor, kv: torch.Tensor, plan: AttentionPlan, out: torch.Tensor) -> None:
        """softmax(scale q K^T) V over the contexts of the plan's n decodes.

        query: [n, heads, head_dim] (rows may be strided) in the type of kv [pages, 2, page_size, kv_heads,
        head_dim], of which each page's keys and values are dense; out: like query, dense, written.
        """
        call = self._call
        call.query, call.query_stride = query.data_ptr(), query.stride(0)
        pages_at(call, kv)
        call.page_table, call.page_table_stride = plan.page_table.data_ptr(), plan.page_table.stride(0)
        call.table_row, call.context_len = plan.table_row.data_ptr(), plan.context_len.data_ptr()
        call.out = out.data_ptr()
        call.rows = len(query)
        self._run(self._address)


def pages_at(call: PagedDecode, kv: torch.Tensor) -> None:
    """Name to `call` the keys and values."""
    call.kv, call.page_stride, call.value_offset = kv.data_ptr(), kv.stride(0), kv.stride(1)
    call.page_size, call.kind = kv.shape[2], KINDS[kv.dtype]
