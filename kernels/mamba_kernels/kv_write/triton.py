# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Paged KV write on a GPU: one program per new row and half of the cache."""

import torch
import triton
import triton.language as tl

from mamba_kernels.fp8_pages import LEAST_SCALE, NOT_FINITE, TOP, Fp8Pages, Pages
from mamba_kernels.triton_support import KernelCall, Launch, block_of, check, stride_unit

_TOP, _LEAST_SCALE, _NOT_FINITE = tl.constexpr(TOP), tl.constexpr(LEAST_SCALE), tl.constexpr(NOT_FINITE)


@triton.jit
def _rounded(x, mask):
    """Return the bytes of e4m3 and of scales for rows x, as `fp8_pages.rounded` does, on any GPU."""
    largest = tl.max(tl.where(mask, x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0), 1)
    # Bits of floats that are not negative are ordered like the floats; those of NaN come last.
    scale = tl.maximum((largest + _TOP).to(tl.uint32, bitcast=True) >> 23, _LEAST_SCALE).to(tl.int32)
    scale = tl.minimum(scale, _NOT_FINITE)
    factor = ((262 - scale) << 23).to(tl.float32, bitcast=True)
    scaled = tl.where((scale < _NOT_FINITE)[:, None], x * factor[:, None], 0.0)
    bits = scaled.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)
    # Below the smallest normal number, 2^-6, numbers are multiples of 2^-9: a sum with 2^14 rounds to them.
    small = (tl.abs(scaled) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    number = tl.where(size < 0x3C800000, small, normal)
    return (number | ((bits >> 24) & 0x80)).to(tl.uint8), scale.to(tl.uint8)


@triton.jit(do_not_specialize=["key_row", "key_head", "value_row", "value_head", "kv_page", "kv_value",
                               "kv_token", "kv_head", "scale_page", "scale_value",
                               "scale_token", "scale_head"])  # fmt: skip
def write_kernel(
    key, value, kv, scales, pages, offsets,
    key_row: tl.int64, key_head: tl.int64, value_row: tl.int64, value_head: tl.int64,
    kv_page: tl.int64, kv_value: tl.int64, kv_token: tl.int64, kv_head: tl.int64,
    scale_page: tl.int64, scale_value: tl.int64, scale_token: tl.int64, scale_head: tl.int64,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_H: tl.constexpr, PADDED: tl.constexpr,
    UNIT: tl.constexpr, KV_UNIT: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """Grid (rows, 2): copy the key (0) or the value (1) of a row to its page of the cache.

    With FP8, rows are rounded to bytes with a scale for each head; `scales` is not used otherwise.
    Strides are in units of UNIT elements, and the strides of `kv` in units of KV_UNIT, so that the compiler
    knows a common divisor.
    """
    row, half = tl.program_id(0), tl.program_id(1)
    page = tl.load(pages + row).to(tl.int64)
    offset = tl.load(offsets + row).to(tl.int64)
    heads = tl.arange(0, BLOCK_H)
    h = heads[:, None]
    d = tl.arange(0, PADDED)[None, :]
    mask = (h < HEADS) & (d < WIDTH)
    targets = kv + page * (kv_page * KV_UNIT) + offset * (kv_token * KV_UNIT) + h * (kv_head * KV_UNIT) + d
    if half == 0:
        positions = row.to(tl.int64) * (key_row * UNIT) + h * (key_head * UNIT) + d
        x = tl.load(key + positions, mask=mask, other=0).to(tl.float32)
    else:
        positions = row.to(tl.int64) * (value_row * UNIT) + h * (value_head * UNIT) + d
        x = tl.load(value + positions, mask=mask, other=0).to(tl.float32)
        targets += kv_value * KV_UNIT
    if FP8:
        numbers, scale = _rounded(x, mask)
        tl.store(targets, numbers, mask=mask)
        places = page * scale_page + half * scale_value + offset * scale_token + heads * scale_head
        tl.store(scales + places, scale, mask=heads < HEADS)
    else:
        tl.store(targets, x.to(kv.dtype.element_ty), mask=mask)


def kv_write(
    kv: Pages, key: torch.Tensor, value: torch.Tensor, page: torch.Tensor, offset: torch.Tensor
) -> None:
    """Store row t of key and value in kv[page[t], 0 | 1, offset[t]].

    `kv` is [pages, 2, page_size, kv_heads, head_dim], written in place; if it is FP8, rows are rounded. `key`
    and `value` are [T, kv_heads, head_dim]; head_dim of all three is dense. `page` and `offset` are [T] int32
    or int64; padding rows have page 0. Raises WrongArgument.
    """
    write_call(kv, key, value, page, offset).run()


def write_call(
    kv: Pages, key: torch.Tensor, value: torch.Tensor, page: torch.Tensor, offset: torch.Tensor
) -> KernelCall:
    """Check the arguments of `kv_write` and return its launch."""
    numbers, scales = stored_parts(kv)
    heads, width = numbers.shape[3:]
    rows = len(key)
    for name, tensor in (("key", key), ("value", value)):
        check(name, tensor, [rows, heads, width], device=numbers.device)
    for name, tensor in (("page", page), ("offset", offset)):
        check(name, tensor, [rows], dtypes=(torch.int32, torch.int64), device=numbers.device)
    unit, kv_unit = stride_unit([*key.stride()[:2], *value.stride()[:2]]), stride_unit(numbers.stride()[:4])
    arguments = {
        "key": key, "value": value, "kv": numbers, "scales": scales, "pages": page, "offsets": offset,
        "key_row": key.stride(0) // unit, "key_head": key.stride(1) // unit,
        "value_row": value.stride(0) // unit, "value_head": value.stride(1) // unit,
        "kv_page": numbers.stride(0) // kv_unit, "kv_value": numbers.stride(1) // kv_unit,
        "kv_token": numbers.stride(2) // kv_unit, "kv_head": numbers.stride(3) // kv_unit,
        **scale_strides(scales),
    }  # fmt: skip
    constants = {
        "HEADS": heads, "WIDTH": width, "BLOCK_H": block_of(heads), "PADDED": block_of(width),
        "UNIT": unit, "KV_UNIT": kv_unit, "FP8": isinstance(kv, Fp8Pages),
    }  # fmt: skip
    return KernelCall(write_kernel, (rows, 2), arguments, constants, Launch(2))


def stored_parts(kv: Pages) -> tuple[torch.Tensor, torch.Tensor]:
    """Check pages, and return the tensors of their numbers and of their scales.

    Pages that are not FP8 have no scales: the second tensor, which nobody reads, is then the first one. The
    kernels of attention call this as well. Raises UnsupportedArgument.
    """
    shape = [None, 2, None, None, None]
    if isinstance(kv, torch.Tensor):
        check("kv", kv, shape)
        return kv, kv
    check("kv", kv.numbers, shape, dtypes=(torch.uint8,))
    check("scales", kv.scales, list(kv.shape[:4]), dtypes=(torch.uint8,), device=kv.device)
    return kv.numbers, kv.scales


def scale_strides(scales: torch.Tensor) -> dict[str, int]:
    """Return the strides of scales as arguments of a kernel."""
    names = ("scale_page", "scale_value", "scale_token", "scale_head")
    return dict(zip(names, scales.stride()[:4], strict=True))
