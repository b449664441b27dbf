# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Decode step of the causal convolution on a GPU, by rows and blocks of channels; see README.md."""

import torch
import triton
import triton.language as tl

from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.triton_support import (
    KernelCall,
    Launch,
    WrongArgument,
    block_of,
    ceil_div,
    check,
    extent_at,
    launch_for,
)

PARTS = 3
"""Parts of a row with gates: b | c | v."""
ROWS = 16
"""Rows of a program, which loads the weights of its channels once for all of them."""


def conv1d_update(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, window: torch.Tensor, plan: SlotPlan
) -> torch.Tensor:
    """Compute silu(sum_k weight[k] * input[t - K + 1 + k] + bias), [n, C], and advance windows by one token.

    `x` is [n, C], rows may be strided; `weight` is [K, C]; `bias` is [C]; `window` is [slabs, K-1, C], C
    dense, read and written as by the reference. The result has the type of x. Raises WrongArgument.
    """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    call(x, weight, bias, window, plan.device_routes, out).run()
    return out


def call(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    window: torch.Tensor,
    routes: torch.Tensor,
    out: torch.Tensor,
    *,
    gated: bool = False,
) -> KernelCall:
    """Return the launch that writes `out`; `routes` are [3, n] int32 of a `SlotPlan`.

    With `gated`, a row of x has three parts of C columns, b | c | v: the inputs of the convolution are b * v,
    and its result is multiplied by c instead of being activated. Raises WrongArgument.
    """
    check("x", x, (None, None))
    n, channels = len(x), channels_of(x, gated=gated)
    check("weight", weight, (None, channels), device=x.device, dense_from=0)
    K = len(weight)
    if not K:
        raise WrongArgument("weight has 0 taps; there must be 1 or more")
    if bias is not None:
        check("bias", bias, (channels,), device=x.device)
    check("window", window, (None, K - 1, channels), device=x.device)
    check("routes", routes, (3, n), dtypes=(torch.int32,), device=x.device)
    launch = launch_for(
        "short_conv_update" if gated else "conv1d_update",
        x.device,
        f"C{channels} K{K} {x.dtype} n{block_of(n)}",
        # Two rows per warp, eight channels per thread.
        Launch(
            num_warps=max(1, block_of(n, most=ROWS) // 2),
            blocks={"R": block_of(n, most=ROWS), "C": block_of(channels, least=16, most=256)},
        ),
    )
    rows, block = launch.blocks["R"], launch.blocks["C"]
    return KernelCall(
        _conv1d_update,
        (ceil_div(channels, block), ceil_div(n, rows)),
        {
            "x": x,
            "x_row": x.stride(0),
            "weight": weight,
            "bias": bias,
            "window": window,
            "window_slab": window.stride(0),
            "window_row": window.stride(1),
            "routes": routes,
            "route": routes.stride(0),
            "out": out,
            "out_row": out.stride(0),
            "n": n,
        },
        {"CHANNELS": channels, "K": K, "ROWS": rows, "BLOCK": block, "GATED": gated},
        launch,
    )


def channels_of(x: torch.Tensor, *, gated: bool) -> int:
    """Return the number of channels C of rows [n, C], or [n, 3 C] if `gated`. Raises WrongArgument."""
    width = x.shape[1]
    if not gated:
        return width
    if width % PARTS:
        raise WrongArgument(f"x has {width} columns; it must have {PARTS} parts of one width")
    return width // PARTS


@triton.jit
def load_inputs(pointers, mask, CHANNELS: tl.constexpr, GATED: tl.constexpr):
    """Load inputs of the convolution, rounded to the type of the rows.

    `pointers` point to the first part of each row. If GATED, an input is the product of the first and the
    third part.
    """
    values = tl.load(pointers, mask=mask, other=0.0)
    if GATED:
        factors = tl.load(pointers + 2 * CHANNELS, mask=mask, other=0.0)
        values = (values.to(tl.float32) * factors.to(tl.float32)).to(values.dtype)
    return values


@triton.jit(do_not_specialize=["route", "n"], do_not_specialize_on_alignment=["routes"])
def _conv1d_update(
    x, x_row, weight, bias, window, window_slab, window_row, routes, route, out, out_row, n,
    CHANNELS: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    row_mask = row < n
    source = tl.load(routes + row, mask=row_mask, other=-1).to(tl.int64)[:, None]
    target = tl.load(routes + route + row, mask=row_mask, other=-1).to(tl.int64)[:, None]
    track = tl.load(routes + 2 * route + row, mask=row_mask, other=-1).to(tl.int64)[:, None]
    row = row.to(tl.int64)[:, None]
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = c < CHANNELS
    offsets = c[None, :]
    mask = row_mask[:, None] & inside[None, :]
    source_mask, track_mask = offsets < extent_at(source, CHANNELS), offsets < extent_at(track, CHANNELS)
    target_mask = offsets < extent_at(target, CHANNELS)
    newest = load_inputs(x + row * x_row + offsets, mask, CHANNELS, GATED)
    factor = tl.load(weight + (K - 1) * CHANNELS + c, mask=inside, other=0.0)
    sums = newest.to(tl.float32) * factor.to(tl.float32)[None, :]
    # The window is shifted while it is read: place k is written once place k + 1 is in registers.
    for k in tl.static_range(K - 1):
        past = tl.load(window + source * window_slab + k * window_row + offsets, mask=source_mask, other=0.0)
        factor = tl.load(weight + k * CHANNELS + c, mask=inside, other=0.0)
        sums += past.to(tl.float32) * factor.to(tl.float32)[None, :]
        if k > 0:
            pointers = window + (k - 1) * window_row + offsets
            tl.store(pointers + target * window_slab, past, mask=target_mask)
            tl.store(pointers + track * window_slab, past, mask=track_mask)
    if K > 1:
        pointers = window + (K - 2) * window_row + offsets
        newest = newest.to(window.dtype.element_ty)
        tl.store(pointers + target * window_slab, newest, mask=target_mask)
        tl.store(pointers + track * window_slab, newest, mask=track_mask)
    if bias is not None:
        sums += tl.load(bias + c, mask=inside, other=0.0).to(tl.float32)[None, :]
    if GATED:
        y = sums * tl.load(x + row * x_row + CHANNELS + offsets, mask=mask, other=0.0).to(tl.float32)
    else:
        y = sums * tl.sigmoid(sums)
    tl.store(out + row * out_row + offsets, y.to(out.dtype.element_ty), mask=mask)
