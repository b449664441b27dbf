# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Paged KV write on a GPU: one program per new row and half of the cache."""

import torch
import triton
import triton.language as tl

from mamba_kernels.triton_support import KernelCall, Launch, block_of, check, stride_unit


@triton.jit(do_not_specialize=["key_row", "key_head", "value_row", "value_head", "kv_page", "kv_value",
                               "kv_token", "kv_head"])  # fmt: skip
def write_kernel(
    key, value, kv, pages, offsets,
    key_row: tl.int64, key_head: tl.int64, value_row: tl.int64, value_head: tl.int64,
    kv_page: tl.int64, kv_value: tl.int64, kv_token: tl.int64, kv_head: tl.int64,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_H: tl.constexpr, PADDED: tl.constexpr,
    UNIT: tl.constexpr, KV_UNIT: tl.constexpr,
):  # fmt: skip
    """Grid (rows, 2): copy the key (0) or the value (1) of a row to its page of the cache.

    Strides are in units of UNIT elements, and the strides of `kv` in units of KV_UNIT, so that the compiler
    knows a common divisor.
    """
    row, half = tl.program_id(0), tl.program_id(1)
    page = tl.load(pages + row).to(tl.int64)
    offset = tl.load(offsets + row).to(tl.int64)
    h = tl.arange(0, BLOCK_H)[:, None]
    d = tl.arange(0, PADDED)[None, :]
    mask = (h < HEADS) & (d < WIDTH)
    targets = kv + page * (kv_page * KV_UNIT) + offset * (kv_token * KV_UNIT) + h * (kv_head * KV_UNIT) + d
    if half == 0:
        positions = row.to(tl.int64) * (key_row * UNIT) + h * (key_head * UNIT) + d
        x = tl.load(key + positions, mask=mask, other=0).to(tl.float32)
        tl.store(targets, x.to(kv.dtype.element_ty), mask=mask)
    else:
        positions = row.to(tl.int64) * (value_row * UNIT) + h * (value_head * UNIT) + d
        x = tl.load(value + positions, mask=mask, other=0).to(tl.float32)
        tl.store(targets + kv_value * KV_UNIT, x.to(kv.dtype.element_ty), mask=mask)


def kv_write(
    kv: torch.Tensor, key: torch.Tensor, value: torch.Tensor, page: torch.Tensor, offset: torch.Tensor
) -> None:
    """Store row t of key and value in kv[page[t], 0 | 1, offset[t]].

    `kv` is [pages, 2, page_size, kv_heads, head_dim], written in place; `key` and `value` are [T, kv_heads,
    head_dim]; of all three head_dim is dense. `page` and `offset` are [T] int32 or int64; padding rows have
    page 0. Raises UnsupportedArgument.
    """
    write_call(kv, key, value, page, offset).run()


def write_call(
    kv: torch.Tensor, key: torch.Tensor, value: torch.Tensor, page: torch.Tensor, offset: torch.Tensor
) -> KernelCall:
    """Check the arguments of `kv_write` and return its launch."""
    check("kv", kv, [None, 2, None, None, None])
    heads, width = kv.shape[3:]
    rows = len(key)
    for name, tensor in (("key", key), ("value", value)):
        check(name, tensor, [rows, heads, width], device=kv.device)
    for name, tensor in (("page", page), ("offset", offset)):
        check(name, tensor, [rows], dtypes=(torch.int32, torch.int64), device=kv.device)
    unit, kv_unit = stride_unit([*key.stride()[:2], *value.stride()[:2]]), stride_unit(kv.stride()[:4])
    arguments = {
        "key": key, "value": value, "kv": kv, "pages": page, "offsets": offset,
        "key_row": key.stride(0) // unit, "key_head": key.stride(1) // unit,
        "value_row": value.stride(0) // unit, "value_head": value.stride(1) // unit,
        "kv_page": kv.stride(0) // kv_unit, "kv_value": kv.stride(1) // kv_unit,
        "kv_token": kv.stride(2) // kv_unit, "kv_head": kv.stride(3) // kv_unit,
    }  # fmt: skip
    constants = {
        "HEADS": heads, "WIDTH": width, "BLOCK_H": block_of(heads), "PADDED": block_of(width),
        "UNIT": unit, "KV_UNIT": kv_unit,
    }  # fmt: skip
    return KernelCall(write_kernel, (rows, 2), arguments, constants, Launch(2))
