# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""A mixture of experts on a GPU: two grouped products and a sum: see README.md."""

import torch
import triton
import triton.language as tl

from mamba_kernels.moe.assignment import Assignment
from mamba_kernels.moe.experts import Experts
from mamba_kernels.triton_support import (
    KernelCall,
    Launch,
    UnsupportedArgument,
    block_of,
    ceil_div,
    check,
    dot_dtype,
    launch_for,
    stride_unit,
)

ACTIVATIONS = {"silu": 0, "relu": 1, "relu2": 2}
LEAST, MOST = 16, 64
"""Rows of a block: the narrowest tile of a product, and as many as keep its sums in registers."""


def moe(x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, experts: Experts) -> torch.Tensor:
    """As the reference: [n, d] in the type of x.

    x: [n, d], d dense; chosen: [n, k] int32; weights: [n, k] float32. Raises UnsupportedArgument.
    """
    n, k = chosen.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows = rows_of_block(n * k, experts.count)
    _check(x, chosen, weights, experts)
    for call in calls(x, weights, experts, Assignment.of(chosen, experts.count, rows), out):
        call.run()
    return out


def rows_of_block(pairs: int, experts: int) -> int:
    return block_of(ceil_div(pairs, experts), least=LEAST, most=MOST)


def _check(x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, experts: Experts) -> None:
    check("x", x, (None, None))
    n, d = x.shape
    check("chosen", chosen, (n, None), dtypes=(torch.int32,), device=x.device)
    check("weights", weights, chosen.shape, dtypes=(torch.float32,), device=x.device, dense_from=0)
    check("experts.down", experts.down, (None, d, None), dtypes=(x.dtype,), device=x.device)
    E, _, inner = experts.down.shape
    rows = inner * (2 if experts.gated else 1)
    check("experts.up", experts.up, (E, rows, d), dtypes=(x.dtype,), device=x.device)
    if experts.activation not in ACTIVATIONS:
        raise UnsupportedArgument(
            f"experts.activation is {experts.activation!r}; it must be one of {', '.join(ACTIVATIONS)}"
        )


def calls(
    x: torch.Tensor, weights: torch.Tensor, experts: Experts, places: Assignment, out: torch.Tensor
) -> list[KernelCall]:
    """The launches that write `out` [n, d], dense."""
    n, d = x.shape
    k, inner = weights.shape[1], experts.inner
    blocks = len(places.expert)
    rows = len(places.pair) // max(1, blocks)
    kind = dot_dtype(x.dtype)
    hidden = torch.empty(blocks * rows, inner, dtype=x.dtype, device=x.device)
    parts = torch.empty(n * k, d, dtype=torch.float32, device=x.device)
    default = Launch(4, 3, {"N": 64, "K": 64 if x.dtype.itemsize < 4 else 32})
    up = launch_for("moe_up", x.device, f"d{d} I{inner} r{rows} {x.dtype}", default)
    down = launch_for("moe_down", x.device, f"d{d} I{inner} r{rows} {x.dtype}", default)
    shared = {"pair": places.pair, "expert": places.expert}
    cut = {"ROWS": rows, "KIND": kind, "PRECISION": "tf32x3"}
    x_unit = stride_unit([x.stride(0)])
    up_unit = stride_unit([experts.up.stride(0), experts.up.stride(1)])
    down_unit = stride_unit([experts.down.stride(0), experts.down.stride(1)])
    block = block_of(d, least=128, most=1024)
    return [
        KernelCall(
            up_kernel,
            (ceil_div(inner, up.blocks["N"]), blocks),
            {
                **shared, "x": x, "x_row": x.stride(0) // x_unit, "up": experts.up,
                "up_expert": experts.up.stride(0) // up_unit, "up_row": experts.up.stride(1) // up_unit,
                "hidden": hidden,
            },
            {
                **cut, "WIDTH": d, "INNER": inner, "EACH": k, "GATED": experts.gated,
                "ACTIVATION": ACTIVATIONS[experts.activation], "BLOCK_N": up.blocks["N"],
                "BLOCK_K": up.blocks["K"], "X_UNIT": x_unit, "UP_UNIT": up_unit,
            },
            up,
        ),
        KernelCall(
            down_kernel,
            (ceil_div(d, down.blocks["N"]), blocks),
            {
                **shared, "hidden": hidden, "down": experts.down,
                "down_expert": experts.down.stride(0) // down_unit,
                "down_row": experts.down.stride(1) // down_unit, "weights": weights, "parts": parts,
            },
            {
                **cut, "WIDTH": d, "INNER": inner, "BLOCK_N": down.blocks["N"], "BLOCK_K": down.blocks["K"],
                "DOWN_UNIT": down_unit,
            },
            down,
        ),
        KernelCall(
            sum_kernel,
            (ceil_div(d, block), n),
            {"parts": parts, "out": out},
            {"WIDTH": d, "EACH": k, "BLOCK": block},
            Launch(4),
        ),
    ]  # fmt: skip


@triton.jit
def _activated(x, ACTIVATION: tl.constexpr):
    if ACTIVATION == 0:
        return x * tl.sigmoid(x)
    y = tl.maximum(x, 0.0)
    if ACTIVATION == 2:
        y = y * y
    return y


@triton.jit(do_not_specialize=["x_row", "up_expert", "up_row"])
def up_kernel(
    pair, expert, x, x_row: tl.int64, up, up_expert: tl.int64, up_row: tl.int64, hidden,
    ROWS: tl.constexpr, KIND: tl.constexpr, PRECISION: tl.constexpr, WIDTH: tl.constexpr, INNER: tl.constexpr,
    EACH: tl.constexpr, GATED: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, X_UNIT: tl.constexpr, UP_UNIT: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of INNER, blocks of places): hidden [places, INNER]; a block without an expert ends."""
    block = tl.program_id(1)
    which = tl.load(expert + block).to(tl.int64)
    if which >= 0:
        i = tl.arange(0, ROWS)
        c = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        j = tl.arange(0, BLOCK_K)
        of_pair = tl.load(pair + block * ROWS + i)
        there, columns = of_pair >= 0, c < INNER
        token = tl.maximum(of_pair, 0) // EACH
        from_x = x + token.to(tl.int64)[:, None] * (x_row * X_UNIT) + j[None, :]
        from_up = (
            up + which * (up_expert * UP_UNIT) + c.to(tl.int64)[None, :] * (up_row * UP_UNIT) + j[:, None]
        )
        total = tl.zeros([ROWS, BLOCK_N], tl.float32)
        gate = tl.zeros([ROWS, BLOCK_N], tl.float32)
        for start in range(0, WIDTH, BLOCK_K):
            inside = start + j < WIDTH
            rows = tl.load(from_x + start, mask=there[:, None] & inside[None, :], other=0.0).to(KIND)
            mask = inside[:, None] & columns[None, :]
            w = tl.load(from_up + start, mask=mask, other=0.0).to(KIND)
            if GATED:
                gate += tl.dot(rows, w, input_precision=PRECISION)
                w = tl.load(from_up + INNER * (up_row * UP_UNIT) + start, mask=mask, other=0.0).to(KIND)
            total += tl.dot(rows, w, input_precision=PRECISION)
        if GATED:
            total = total * _activated(gate, ACTIVATION)
        else:
            total = _activated(total, ACTIVATION)
        to = hidden + (block * ROWS + i).to(tl.int64)[:, None] * INNER + c[None, :]
        tl.store(to, total.to(hidden.dtype.element_ty), mask=there[:, None] & columns[None, :])


@triton.jit(do_not_specialize=["down_expert", "down_row"])
def down_kernel(
    pair, expert, hidden, down, down_expert: tl.int64, down_row: tl.int64, weights, parts,
    ROWS: tl.constexpr, KIND: tl.constexpr, PRECISION: tl.constexpr, WIDTH: tl.constexpr, INNER: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, DOWN_UNIT: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of WIDTH, blocks of places): parts [pairs, WIDTH], each times its weight."""
    block = tl.program_id(1)
    which = tl.load(expert + block).to(tl.int64)
    if which >= 0:
        i = tl.arange(0, ROWS)
        c = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        j = tl.arange(0, BLOCK_K)
        of_pair = tl.load(pair + block * ROWS + i)
        there, columns = of_pair >= 0, c < WIDTH
        from_hidden = hidden + (block * ROWS + i).to(tl.int64)[:, None] * INNER + j[None, :]
        from_down = (
            down + which * (down_expert * DOWN_UNIT) + c.to(tl.int64)[None, :] * (down_row * DOWN_UNIT)
        )
        from_down += j[:, None]
        total = tl.zeros([ROWS, BLOCK_N], tl.float32)
        for start in range(0, INNER, BLOCK_K):
            inside = start + j < INNER
            rows = tl.load(from_hidden + start, mask=there[:, None] & inside[None, :], other=0.0).to(KIND)
            w = tl.load(from_down + start, mask=inside[:, None] & columns[None, :], other=0.0).to(KIND)
            total += tl.dot(rows, w, input_precision=PRECISION)
        weight = tl.load(weights + tl.maximum(of_pair, 0), mask=there, other=0.0)
        to = parts + tl.maximum(of_pair, 0).to(tl.int64)[:, None] * WIDTH + c[None, :]
        tl.store(to, total * weight[:, None], mask=there[:, None] & columns[None, :])


@triton.jit
def sum_kernel(parts, out, WIDTH: tl.constexpr, EACH: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (blocks of WIDTH, rows): a row's parts in the order of its experts."""
    row = tl.program_id(1).to(tl.int64)
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = c < WIDTH
    total = tl.zeros([BLOCK], tl.float32)
    for which in tl.static_range(EACH):
        total += tl.load(parts + (row * EACH + which) * WIDTH + c, mask=inside, other=0.0)
    tl.store(out + row * WIDTH + c, total.to(out.dtype.element_ty), mask=inside)
