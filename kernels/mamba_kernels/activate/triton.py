# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Activations on a GPU, one launch with or without a factor; see README.md."""

import torch
import triton
import triton.language as tl

from mamba_kernels.activate.function import Function
from mamba_kernels.triton_support import KernelCall, Launch, block_of, ceil_div, check, stride_unit

TILE = 1024
"""Elements of a program: 128 bits per thread."""


def activate(x: torch.Tensor, function: Function, factor: torch.Tensor | None = None) -> None:
    """Replace x by function(x) * factor in place. Raises WrongArgument."""
    call(x, function, factor).run()


def call(x: torch.Tensor, function: Function, factor: torch.Tensor | None) -> KernelCall:
    """Check the arguments of `activate` and return its launch."""
    check("x", x, (None, None))
    rows, width = x.shape
    unit, factor_unit, factor_row = stride_unit(x.stride()[:1]), 1, 0
    if factor is not None:
        check("factor", factor, (rows, width), device=x.device)
        factor_unit = stride_unit(factor.stride()[:1])
        factor_row = factor.stride(0) // factor_unit
    block = block_of(width, least=128, most=TILE)
    return KernelCall(
        activate_kernel,
        (rows, ceil_div(width, block)),
        {"x": x, "x_row": x.stride(0) // unit, "factor": factor, "factor_row": factor_row},
        {
            "FUNCTION": function.value, "WIDTH": width, "BLOCK": block, "UNIT": unit,
            "FACTOR_UNIT": factor_unit,
        },
        Launch(max(1, block // 256)),
    )  # fmt: skip


@triton.jit(do_not_specialize=["x_row", "factor_row"])
def activate_kernel(
    x, factor, x_row: tl.int64, factor_row: tl.int64, FUNCTION: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr, UNIT: tl.constexpr, FACTOR_UNIT: tl.constexpr,
):  # fmt: skip
    """Grid (rows, tiles of BLOCK elements of a row): x = FUNCTION(x), times `factor` if given.

    `x_row` is a stride in units of UNIT elements and `factor_row` one in units of FACTOR_UNIT elements, so
    that the compiler knows a common divisor.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    pointers = x + row * (x_row * UNIT) + column
    value = tl.load(pointers, mask=inside, other=0.0).to(tl.float32)
    if FUNCTION == "squared_relu":
        value = _relu(value)
        value *= value
    elif FUNCTION == "relu":
        value = _relu(value)
    elif FUNCTION == "silu":
        value *= tl.sigmoid(value)
    elif FUNCTION == "sigmoid":
        value = tl.sigmoid(value)
    elif FUNCTION == "gelu":
        value *= 0.5 + 0.5 * tl.erf(value * 0.7071067811865476)
    else:
        # (1 + tanh(y)) / 2 = sigmoid(2 y)
        value *= tl.sigmoid(1.5957691216057308 * (value + 0.044715 * value * value * value))
    if factor is not None:
        factor_value = tl.load(factor + row * (factor_row * FACTOR_UNIT) + column, mask=inside, other=0.0)
        value *= factor_value.to(tl.float32)
    tl.store(pointers, value.to(x.dtype.element_ty), mask=inside)


@triton.jit
def _relu(x):
    """Compute max(x, 0) so that NaN stays NaN."""
    return tl.where(x < 0.0, 0.0, x)
