"""Paged KV write in plain torch on any device. Called by attention layers before attention."""

import torch

from mamba_kernels.fp8_pages import Pages, store_rows


def kv_write(
    kv: Pages, key: torch.Tensor, value: torch.Tensor, page: torch.Tensor, offset: torch.Tensor
) -> None:
    """Store row t of key and value in kv[page[t], 0 | 1, offset[t]].

    `kv` is [pages, 2, page_size, kv_heads, head_dim], any strides, written in place; if it is FP8, rows are
    rounded. `key` and `value` are [T, kv_heads, head_dim]; `page` and `offset` are [T] int32 or int64.
    Padding rows have page 0.
    """
    store_rows(kv, 0, key, page, offset)
    store_rows(kv, 1, value, page, offset)
