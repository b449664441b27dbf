# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""FP8 on a GPU: one kernel norms rows and rounds them to FP8, another one multiplies; see README.md.

Where each row and each output has a single scale, torch multiplies if it can. The kernel multiplies where
groups of inputs have scales, and where torch does not take the types or sizes.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from mamba_kernels.fp8.matrix import GROUP, KIND, Fp8Matrix, Fp8Rows
from mamba_kernels.rms_norm.triton import MOST_WIDTH, row_of_stream
from mamba_kernels.triton_support import (
    KernelCall,
    Launch,
    UnsupportedArgument,
    WrongArgument,
    block_of,
    ceil_div,
    check,
    interpreted,
    launch_for,
)

MOST_ROWS = 64
"""Largest number of rows of a tile."""
TORCH_MULTIPLE = 16
"""Number of which the extents of torch's product have to be multiples."""


@triton.jit
def _nearest(x):
    """Return the e4m3 number nearest to each float32 in -448..448, as a float32.

    Triton's interpreter truncates when it converts to e4m3, which leaves numbers of e4m3 as they are.
    """
    bits = tl.abs(x).to(tl.uint32, bitcast=True)
    rounded = (bits + 0x7FFFF + ((bits >> 20) & 1)) & 0xFFF00000
    # Below 2^-6 numbers are multiples of 2^-9, to which a sum with 1.5 * 2^14 rounds.
    tiny = (tl.abs(x) + 24576.0) - 24576.0
    size = tl.where(bits < 0x3C800000, tiny, rounded.to(tl.float32, bitcast=True))
    return tl.where(x < 0, -size, size)


@triton.jit
def norm_kernel(
    x, x_row, added, added_row, weight, normed, numbers, scales, eps,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, GROUPS: tl.constexpr, SCALES: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Grid (rows,): norm a row if there is a `weight`, and store it as FP8 with SCALES scales.

    A row has GROUPS parts with a scale each; the last ones may lie beyond the row, which has WIDTH numbers.
    """
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, BLOCK)
    inside = part < WIDTH
    value = row_of_stream(x, row * x_row + part, added, row * added_row + part, inside)
    if weight is not None:
        factor = tl.load(weight + part, mask=inside, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(value * value, 0) / WIDTH + eps)
        result = (value * scale * factor).to(normed.dtype.element_ty)
        tl.store(normed + row * WIDTH + part, result, mask=inside)
        value = result.to(tl.float32)
    parts = tl.reshape(value, [GROUPS, BLOCK // GROUPS])
    sizes = tl.div_rn(tl.max(tl.abs(parts), 1), tl.full([GROUPS], 448.0, tl.float32))
    group = tl.arange(0, GROUPS)
    tl.store(scales + row * SCALES + group, sizes, mask=group < SCALES)
    divisors = tl.broadcast_to(tl.where(sizes > 0, sizes, 1.0)[:, None], [GROUPS, BLOCK // GROUPS])
    parts = tl.minimum(tl.maximum(tl.div_rn(parts, divisors), -448.0), 448.0)
    if INTERPRETED:
        parts = _nearest(parts)
    tl.store(numbers + row * WIDTH + part, tl.reshape(parts, [BLOCK]).to(tl.float8e4nv), mask=inside)


@triton.jit(do_not_specialize=["rows", "weight_row", "groups"])
def product_kernel(
    left, left_scales, weight, right_scales, bias, out, rows, weight_row: tl.int64, groups,
    WIDTH: tl.constexpr, OUTPUTS: tl.constexpr, GROUPED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, WEIGHT_UNIT: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of outputs, tiles of rows): store rows W^T + bias.

    Each step over the inputs is summed by itself and added in float32: tensor cores alone keep fewer bits.
    """
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    valid, feature = m < rows, n < OUTPUTS
    row, column = m.to(tl.int64), n.to(tl.int64)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, WIDTH, BLOCK_K):
        place = start + k
        inside = place < WIDTH
        mask = valid[:, None] & inside[None, :]
        a = tl.load(left + row[:, None] * WIDTH + place[None, :], mask=mask, other=0.0).to(DOT)
        mask = feature[:, None] & inside[None, :]
        offsets = column[:, None] * (weight_row * WEIGHT_UNIT) + place[None, :]
        b = tl.load(weight + offsets, mask=mask, other=0.0).to(DOT)
        part = tl.dot(a, tl.trans(b))
        if GROUPED:
            group = start // 128
            of_rows = tl.load(left_scales + row * groups + group, mask=valid, other=0.0)
            of_outputs = tl.load(right_scales + column * groups + group, mask=feature, other=0.0)
            part = part * of_rows[:, None] * of_outputs[None, :]
        total += part
    if not GROUPED:
        of_rows = tl.load(left_scales + row, mask=valid, other=0.0)
        of_outputs = tl.load(right_scales + column, mask=feature, other=0.0)
        total = total * of_rows[:, None] * of_outputs[None, :]
    if bias is not None:
        total += tl.load(bias + n, mask=feature, other=0.0).to(tl.float32)[None, :]
    mask = valid[:, None] & feature[None, :]
    tl.store(out + row[:, None] * OUTPUTS + n[None, :], total.to(out.dtype.element_ty), mask=mask)


def fp8_rows(x: torch.Tensor, groups: int) -> Fp8Rows:
    """Round rows x [T, inputs] to FP8, with `groups` scales of each. Raises WrongArgument."""
    rows = _empty(x, groups)
    norm_call(x, None, 0.0, None, None, rows).run()
    return rows


def fp8_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    added: torch.Tensor | None,
    dtype: torch.dtype,
    groups: int,
) -> tuple[torch.Tensor, Fp8Rows]:
    """Return the RMSNorm of x [T, d], of type `dtype`, and the same rows rounded to FP8.

    x becomes x + added first, if there is `added`. Raises WrongArgument.
    """
    rows = _empty(x, groups)
    normed = torch.empty(x.shape, dtype=dtype, device=x.device)
    norm_call(x, weight, eps, added, normed, rows).run()
    return normed, rows


def _empty(x: torch.Tensor, groups: int) -> Fp8Rows:
    check("x", x, (None, None))
    width = x.shape[1]
    if groups not in (1, ceil_div(width, GROUP)):
        raise WrongArgument(f"groups is {groups}; rows of {width} have 1 or {ceil_div(width, GROUP)}")
    numbers = torch.empty(x.shape, dtype=KIND, device=x.device)
    return Fp8Rows(numbers, torch.empty(len(x), groups, dtype=torch.float32, device=x.device))


def norm_call(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    added: torch.Tensor | None,
    normed: torch.Tensor | None,
    rows: Fp8Rows,
) -> KernelCall:
    """Return the launch that writes `rows`, and `normed` if there is a `weight`.

    Raises WrongArgument, UnsupportedArgument.
    """
    T, width = x.shape
    if width > MOST_WIDTH:
        raise UnsupportedArgument(f"x has rows of {width}; the kernel takes {MOST_WIDTH} at most")
    if weight is not None:
        check("weight", weight, (width,), device=x.device)
    if added is not None:
        check("added", added, (T, width), device=x.device)
    block, scales = block_of(width, least=GROUP), rows.scales.shape[1]
    return KernelCall(
        norm_kernel,
        (T,),
        {
            "x": x, "x_row": x.stride(0), "added": added,
            "added_row": 0 if added is None else added.stride(0),
            "weight": weight, "normed": normed, "numbers": rows.numbers, "scales": rows.scales, "eps": eps,
        },
        {
            "WIDTH": width, "BLOCK": block, "GROUPS": 1 if scales == 1 else block // GROUP, "SCALES": scales,
            "INTERPRETED": interpreted(),
        },
        launch_for("fp8_norm", x.device, f"d{width} {x.dtype}", Launch(max(1, min(16, block // 256)))),
    )  # fmt: skip


def fp8_product(
    rows: Fp8Rows, matrix: Fp8Matrix, bias: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """Return rows W^T + bias, [T, outputs] of type `dtype`; see the reference. Raises WrongArgument."""
    if _torch_multiplies(rows, matrix, dtype):
        # Torch has no public name for it in the oldest version that may be installed.
        multiply = torch.ops.aten._scaled_mm.default  # noqa: SLF001
        out: torch.Tensor = multiply(
            rows.numbers, matrix.numbers.t(), rows.scales, matrix.scales.t(), None, None, dtype
        )
        return out if bias is None else out.add_(bias)
    out = torch.empty(len(rows.numbers), matrix.shape[0], dtype=dtype, device=rows.numbers.device)
    product_call(rows, matrix, bias, out).run()
    return out


def _torch_multiplies(rows: Fp8Rows, matrix: Fp8Matrix, dtype: torch.dtype) -> bool:
    return (
        rows.numbers.is_cuda
        and rows.scales.shape[1] == matrix.groups == 1
        and dtype == torch.bfloat16
        and len(rows.numbers) > 0
        and not any(extent % TORCH_MULTIPLE for extent in matrix.shape)
        and matrix.numbers.is_contiguous()
        and matrix.scales.is_contiguous()
    )


def product_call(
    rows: Fp8Rows, matrix: Fp8Matrix, bias: torch.Tensor | None, out: torch.Tensor
) -> KernelCall:
    """Check the arguments of `fp8_product` and return its launch. Raises WrongArgument."""
    check("rows.numbers", rows.numbers, (None, None), dtypes=(KIND,), dense_from=0)
    device, (T, width) = rows.numbers.device, rows.numbers.shape
    check("matrix.numbers", matrix.numbers, (None, width), dtypes=(KIND,), device=device)
    outputs, groups = len(matrix.numbers), matrix.groups
    if groups not in (1, ceil_div(width, GROUP)):
        raise WrongArgument(f"matrix.scales has {groups} groups for {width} inputs")
    scales: dict[str, Any] = {"dtypes": (torch.float32,), "device": device, "dense_from": 0}
    check("matrix.scales", matrix.scales, (outputs, groups), **scales)
    check("rows.scales", rows.scales, (T, groups), **scales)
    if bias is not None:
        check("bias", bias, (outputs,), device=device)
    tile = block_of(T, least=16, most=MOST_ROWS)
    prompt = tile == MOST_ROWS
    default = Launch(8 if prompt else 4, 3 if prompt else 4, {"N": 128 if prompt else 64, "K": GROUP})
    # The tile of a product with scales of groups must not reach across groups, so it is measured by itself.
    shape = f"m{tile} k{width} n{outputs}{' groups' if groups > 1 else ''}"
    launch = launch_for("fp8_product", device, shape, default)
    unit = 16 if matrix.numbers.stride(0) % 16 == 0 else 1
    return KernelCall(
        product_kernel,
        (ceil_div(outputs, launch.blocks["N"]), ceil_div(T, tile)),
        {
            "left": rows.numbers, "left_scales": rows.scales, "weight": matrix.numbers,
            "right_scales": matrix.scales, "bias": bias, "out": out, "rows": T,
            "weight_row": matrix.numbers.stride(0) // unit, "groups": groups,
        },
        {
            "WIDTH": width, "OUTPUTS": outputs, "GROUPED": groups > 1, "BLOCK_M": tile,
            "BLOCK_N": launch.blocks["N"], "BLOCK_K": launch.blocks["K"], "WEIGHT_UNIT": unit,
            "DOT": tl.float32 if interpreted() else tl.float8e4nv,
        },
        launch,
    )  # fmt: skip
