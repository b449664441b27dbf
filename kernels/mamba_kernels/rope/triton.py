# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Rotary positions on a GPU: one program per row."""

import torch
import triton
import triton.language as tl

from mamba_kernels.rope.arguments import check_width
from mamba_kernels.triton_support import KernelCall, Launch, block_of, check, stride_unit


@triton.jit(do_not_specialize=["x_row", "x_head"])
def rope_kernel(
    x, cos, sin, x_row: tl.int64, x_head: tl.int64,
    HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK_H: tl.constexpr, PADDED: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """Grid (rows,): rotate all heads of a row in place.

    `x_row` and `x_head` are strides in units of UNIT elements, so that the compiler knows a common divisor.
    """
    row = tl.program_id(0).to(tl.int64)
    h = tl.arange(0, BLOCK_H)[:, None]
    d = tl.arange(0, PADDED)[None, :]
    inside = d < HALF
    mask = (h < HEADS) & inside
    c = tl.load(cos + row * HALF + d, mask=inside, other=0.0)
    s = tl.load(sin + row * HALF + d, mask=inside, other=0.0)
    pointers = x + row * (x_row * UNIT) + h * (x_head * UNIT) + d
    first = tl.load(pointers, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(pointers + HALF, mask=mask, other=0.0).to(tl.float32)
    tl.store(pointers, (first * c - second * s).to(x.dtype.element_ty), mask=mask)
    tl.store(pointers + HALF, (second * c + first * s).to(x.dtype.element_ty), mask=mask)


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotate each head of each row in place, as the reference does. Raises WrongArgument.

    The last dimension of `x` is dense, and `cos` and `sin` are dense.
    """
    rope_call(x, cos, sin).run()


def rope_call(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> KernelCall:
    """Check the arguments of `rope` and return its launch."""
    check("x", x, [None, None, None])
    rows, heads, width = x.shape
    check("cos", cos, [rows, None], dtypes=(torch.float32,), device=x.device, dense_from=0)
    half = cos.shape[1]
    check("sin", sin, [rows, half], dtypes=(torch.float32,), device=x.device, dense_from=0)
    check_width(half, width)
    unit = stride_unit(x.stride()[:2])
    arguments = {"x": x, "cos": cos, "sin": sin, "x_row": x.stride(0) // unit, "x_head": x.stride(1) // unit}
    constants = {
        "HEADS": heads, "HALF": half, "BLOCK_H": block_of(heads), "PADDED": block_of(half), "UNIT": unit,
    }  # fmt: skip
    return KernelCall(rope_kernel, (rows,), arguments, constants, Launch(4))
