# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The product with a matrix of four bits on a GPU, without a host sync; see README.md.

A decode has too few tiles to occupy all processors. Its inputs are therefore split among several programs,
and a second launch adds their sums in a fixed order. The form of a launch follows from shapes alone.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from mamba_kernels.four_bit.matrix import RUN, Code, FourBitMatrix
from mamba_kernels.four_bit.tiles import FORM, accumulate
from mamba_kernels.triton_support import (
    KernelCall,
    Launch,
    UnsupportedArgument,
    block_of,
    ceil_div,
    check,
    dot_dtype,
    launch_for,
    processors,
    stride_unit,
)

TILE_ROWS = ((1, 16), (17, 64), (257, 128))
"""Least number of rows of a product, and number of rows of its tiles, in ascending order."""
SPLIT_ROWS = 16
"""Number of rows of those tiles whose inputs may be split among programs."""
MOST_SPLITS = 8
LEAST_SPLIT_RUNS = 16
"""Least number of runs of a split: each ends with a tile that is written and read again."""
PROGRAMS_OF_A_PROCESSOR = 2


def rows_of_a_tile(rows: int) -> int:
    """Return the rows of a tile of a product of `rows` rows."""
    return [tile for least, tile in TILE_ROWS if rows >= least][-1]


def row_counts_of_tiles(most: int) -> list[int]:
    """Return for each compiled form of the kernel its smallest number of rows, if at most `most`."""
    return [least for least, _ in TILE_ROWS if least <= most]


@triton.jit(do_not_specialize=["rows", "x_row", "out_row", "runs_each"])
def product_kernel(
    x, codes, scales, zeros, factors, order, bias, out, rows, width, features, groups, group,
    x_row: tl.int64, out_row: tl.int64, runs_each,
    FORM: tl.constexpr, SPLIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    RUNS: tl.constexpr, X_UNIT: tl.constexpr, OUT_UNIT: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of outputs, tiles of rows, splits): store a tile of the product, or of a split's sums."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    split = tl.program_id(2)
    feature, row = n.to(tl.int64), m.to(tl.int64)
    mask, valid = n < features, m < rows
    first = split * runs_each
    last = tl.minimum(first + runs_each, width // 32)
    total, _ = accumulate(
        x, row * x_row * X_UNIT, valid, codes, scales, zeros, order, feature, mask, feature,
        first, last, width, groups, group, FORM, False, BLOCK_M, BLOCK_N, RUNS, DOT,
    )  # fmt: skip
    if SPLIT:
        row += split.to(tl.int64) * rows
    else:
        if factors is not None:
            total *= tl.load(factors + feature, mask=mask, other=0.0)[:, None]
        if bias is not None:
            total += tl.load(bias + feature, mask=mask, other=0.0).to(tl.float32)[:, None]
    places = row[:, None] * out_row * OUT_UNIT + feature[None, :]
    tl.store(out + places, tl.trans(total).to(out.dtype.element_ty), mask=valid[:, None] & mask[None, :])


@triton.jit(do_not_specialize=["rows", "out_row"])
def add_kernel(
    parts, factors, bias, out, rows, features, out_row: tl.int64,
    SPLITS: tl.constexpr, BLOCK: tl.constexpr, OUT_UNIT: tl.constexpr,
):  # fmt: skip
    """Grid (rows, tiles of outputs): add the sums of the splits of a row in their order."""
    row = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = n < features
    total = tl.zeros([BLOCK], tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(parts + (split * rows + row) * features + n, mask=mask, other=0.0)
    if factors is not None:
        total *= tl.load(factors + n, mask=mask, other=0.0)
    if bias is not None:
        total += tl.load(bias + n, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * out_row * OUT_UNIT + n, total.to(out.dtype.element_ty), mask=mask)


def four_bit_product(
    x: torch.Tensor,
    matrix: FourBitMatrix,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    invariant: bool = False,
) -> None:
    """Compute out = x W^T + bias in one launch, or in two for few rows.

    `x` is [n, inputs]; `bias` is [outputs]; `out` is [n, outputs] of the type of x, written; the rows of both
    may be strided. `invariant` says whether a row's bits must not depend on the number of rows. Raises
    WrongArgument.
    """
    for call in calls(x, matrix, bias, out, invariant):
        call.run()


def calls(
    x: torch.Tensor,
    matrix: FourBitMatrix,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    invariant: bool = False,
) -> list[KernelCall]:
    """Check the arguments of `four_bit_product` and return its launches."""
    check("x", x, (None, matrix.shape[-1]))
    check_matrix("matrix", matrix, x.device, (None, None))
    outputs, inputs = matrix.shape
    check("out", out, (len(x), outputs), dtypes=(x.dtype,), device=x.device)
    if bias is not None:
        check("bias", bias, (outputs,), device=x.device)
    if not len(x):
        return []
    tile = SPLIT_ROWS if invariant else rows_of_a_tile(len(x))
    launch = launch_for("four_bit_product", x.device, f"m{tile} {x.dtype}", _default(x.dtype, tile))
    block, runs = launch.blocks["N"], inputs // RUN
    splits, runs_each = 1, runs
    # The sums of splits of a long prompt would take gigabytes, and its rows have to equal a decode's.
    if tile == SPLIT_ROWS and not invariant:
        splits, runs_each = _splits(ceil_div(outputs, block), runs, launch.blocks["K"] // RUN, x.device)
    target = out if splits == 1 else x.new_empty(splits * len(x), outputs, dtype=torch.float32)
    x_unit, unit = stride_unit(x.stride()[:1]), stride_unit(target.stride()[:1])
    product = KernelCall(
        product_kernel,
        (ceil_div(outputs, block), ceil_div(len(x), tile), splits),
        {
            "x": x, **arguments_of(matrix), "bias": bias, "out": target, "rows": len(x), "width": inputs,
            "features": outputs, "x_row": x.stride(0) // x_unit, "out_row": target.stride(0) // unit,
            "runs_each": runs_each,
        },
        {
            "FORM": FORM[matrix.code], "SPLIT": splits > 1, "BLOCK_M": tile, "BLOCK_N": block,
            "RUNS": launch.blocks["K"] // RUN, "X_UNIT": x_unit, "OUT_UNIT": unit, "DOT": dot_dtype(x.dtype),
        },
        launch,
    )  # fmt: skip
    if splits == 1:
        return [product]
    unit, width = stride_unit(out.stride()[:1]), block_of(outputs, least=128, most=1024)
    return [
        product,
        KernelCall(
            add_kernel,
            (len(x), ceil_div(outputs, width)),
            {
                "parts": target, "factors": matrix.factors, "bias": bias, "out": out, "rows": len(x),
                "features": outputs, "out_row": out.stride(0) // unit,
            },
            {"SPLITS": splits, "BLOCK": width, "OUT_UNIT": unit},
            Launch(max(1, width // 256)),
        ),
    ]  # fmt: skip


def _default(dtype: torch.dtype, tile: int) -> Launch:
    if dtype == torch.float32:
        # A float32 operand takes the registers of two while it is multiplied.
        return Launch(4, 2, {"N": 32, "K": 32 if tile > SPLIT_ROWS else 64})
    if tile == SPLIT_ROWS:
        return Launch(4, 4, {"N": 64, "K": 128})
    return Launch(4 if tile == 64 else 8, 3, {"N": 64 if tile == 64 else 128, "K": 64})


def _splits(tiles: int, runs: int, step: int, device: torch.device) -> tuple[int, int]:
    """Return the splits of the inputs, and the runs of each."""
    idle = PROGRAMS_OF_A_PROCESSOR * processors(device) // tiles
    splits = max(1, min(MOST_SPLITS, idle, runs // LEAST_SPLIT_RUNS))
    runs_each = ceil_div(ceil_div(runs, splits), step) * step
    return ceil_div(runs, runs_each), runs_each


def arguments_of(matrix: FourBitMatrix) -> dict[str, Any]:
    """Return the matrix as arguments of a kernel."""
    return {
        "codes": matrix.codes,
        "scales": matrix.scales,
        "zeros": matrix.zeros,
        "factors": matrix.factors,
        "order": matrix.order,
        "groups": matrix.scales.shape[-1],
        "group": matrix.group,
    }


def check_matrix(name: str, matrix: FourBitMatrix, device: torch.device, shape: Sequence[int | None]) -> None:
    """Raise WrongArgument unless the matrix, or the matrices of experts, have this shape; None = any extent.

    `name` is the argument in the message.
    """
    rows: dict[str, Any] = {"device": device, "dense_from": 0}
    inputs = shape[-1]
    extents = (*shape[:-1], None if inputs is None else inputs // 2)
    check(f"{name}.codes", matrix.codes, extents, dtypes=(torch.uint8,), **rows)
    *outer, inputs = matrix.shape
    if inputs % RUN:
        raise UnsupportedArgument(f"{name} has {inputs} inputs; there must be a multiple of {RUN}")
    kind = torch.float16 if matrix.code in (Code.INTEGER, Code.INTEGER_ZEROS) else torch.uint8
    groups = ceil_div(inputs, matrix.group)
    check(f"{name}.scales", matrix.scales, (*outer, groups), dtypes=(kind,), **rows)
    others: dict[str, tuple[torch.Tensor | None, tuple[int, ...], torch.dtype]] = {
        "zeros": (matrix.zeros, (*outer, groups), torch.uint8),
        "factors": (matrix.factors, (*outer,), torch.float32),
        "order": (matrix.order, (*outer[:-1], inputs), torch.int32),
    }
    for part, (tensor, extents_of_part, dtype) in others.items():
        if tensor is not None:
            check(f"{name}.{part}", tensor, extents_of_part, dtypes=(dtype,), **rows)
