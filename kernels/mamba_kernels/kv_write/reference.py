"""Paged KV write in plain torch on any device. Called by attention layers before attention."""

import torch


def kv_write(
    kv: torch.Tensor, key: torch.Tensor, value: torch.Tensor, page: torch.Tensor, offset: torch.Tensor
) -> None:
    """Store row t of key and value in kv[page[t], 0 | 1, offset[t]].

    `kv` is [pages, 2, page_size, kv_heads, head_dim], any strides, written in place; `key` and `value` are
    [T, kv_heads, head_dim]; `page` and `offset` are [T] int32 or int64. Padding rows have page 0.
    """
    kv.select(1, 0)[page, offset] = key.to(kv.dtype)
    kv.select(1, 1)[page, offset] = value.to(kv.dtype)
