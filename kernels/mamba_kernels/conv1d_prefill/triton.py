# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# Tuples grow while a kernel is compiled, and Triton's compiler does not support unpacking.
# mypy: disable-error-code="assignment"
# ruff: noqa: RUF005
"""Causal convolution over prefill pieces on a GPU, by rows and blocks of channels; see README.md."""

import torch
import triton
import triton.language as tl

from mamba_kernels.conv1d_update.triton import channels_of, load_inputs
from mamba_kernels.ssd_prefill.plan import ChunkPlan
from mamba_kernels.triton_support import (
    KernelCall,
    Launch,
    UnsupportedArgument,
    block_of,
    ceil_div,
    check,
    check_plan,
    extent_at,
    launch_for,
)

SPAN = 64
"""Rows of a program, which loads K-1 more rows and the weights once: few enough that a short prompt has
several programs."""
TOGETHER = 8
"""Rows that are loaded before the first of them is needed."""
MOST_TAPS = 16
"""Largest number of taps: the inputs of a row are kept in registers."""


def conv1d_prefill(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, window: torch.Tensor, plan: ChunkPlan
) -> torch.Tensor:
    """Compute silu(sum_k weight[k] * input[t - K + 1 + k] + bias), [T, C] in the type of x; write `window`.

    `x` is [T, C], rows may be strided; `weight` is [K, C]; `bias` is [C]; `window` is [slabs, K-1, C], C
    dense, read at the plan's sources and written at its targets and checkpoints. Raises WrongArgument.
    """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    call(x, weight, bias, window, plan, out).run()
    return out


def call(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    window: torch.Tensor,
    plan: ChunkPlan,
    out: torch.Tensor,
    *,
    gated: bool = False,
) -> KernelCall:
    """Return the launch that writes `out` [T, C]; `gated` is described at `conv1d_update`.

    Raises WrongArgument, UnsupportedArgument.
    """
    check("x", x, (None, None))
    check_plan("x", x, plan.tokens, plan.on_device.chunk_start.device)
    channels = channels_of(x, gated=gated)
    check("weight", weight, (None, channels), device=x.device, dense_from=0)
    K = len(weight)
    if not 0 < K <= MOST_TAPS:
        raise UnsupportedArgument(f"weight has {K} taps; the kernel takes 1 to {MOST_TAPS}")
    if bias is not None:
        check("bias", bias, (channels,), device=x.device)
    check("window", window, (None, K - 1, channels), device=x.device)
    launch = launch_for(
        "short_conv_prefill" if gated else "conv1d_prefill",
        x.device,
        f"C{channels} K{K} {x.dtype}",
        Launch(num_warps=1, blocks={"T": SPAN, "C": block_of(channels, least=16, most=256)}),
    )
    # All chunks that begin within a window's length of a piece's start fit the rows of one program.
    span = max(launch.blocks["T"], block_of(K))
    chunks, routes = plan.on_device, plan.slots.device_routes
    return KernelCall(
        _conv1d_prefill,
        (ceil_div(channels, launch.blocks["C"]), plan.chunks, ceil_div(plan.longest_chunk, span)),
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
            "piece_chunk": chunks.piece_chunk,
            "chunk_start": chunks.chunk_start,
            "chunk_track": chunks.chunk_track,
            "chunk_piece": chunks.chunk_piece,
            "out": out,
            "out_row": out.stride(0),
        },
        {
            "CHANNELS": channels,
            "K": K,
            "SPAN": span,
            "TOGETHER": TOGETHER,
            "BLOCK_C": launch.blocks["C"],
            "GATED": gated,
        },
        launch,
    )


@triton.jit
def _store_window(
    x, x_row, window, window_slab, window_row, source, target, begin, end, c, CHANNELS: tl.constexpr,
    K: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """Store the K-1 inputs before row `end` of the piece that begins at `begin` in slot `target`."""
    # This program may not have received all rows of the window that is overwritten here.
    tl.debug_barrier()
    inside, source_mask = c < CHANNELS, c < extent_at(source, CHANNELS)
    for k in tl.static_range(K - 1):
        row = end - (K - 1) + k
        row_mask = c < extent_at(row - begin, CHANNELS)
        fresh = load_inputs(x + row.to(tl.int64) * x_row + c, row_mask, CHANNELS, GATED)
        # In a piece shorter than the window the older inputs move up: place k is read from a later place.
        window_mask = source_mask & (c < extent_at(begin - 1 - row, CHANNELS))
        pointers = window + source * window_slab + (end - begin + k) * window_row + c
        value = tl.where(row_mask, fresh, tl.load(pointers, mask=window_mask, other=0.0).to(fresh.dtype))
        pointers = window + target * window_slab + k * window_row + c
        tl.store(pointers, value.to(window.dtype.element_ty), mask=inside)


@triton.jit(
    do_not_specialize=["route"],
    do_not_specialize_on_alignment=["routes", "piece_chunk", "chunk_start", "chunk_track", "chunk_piece"],
)
def _conv1d_prefill(
    x, x_row, weight, bias, window, window_slab, window_row, routes, route, piece_chunk, chunk_start,
    chunk_track, chunk_piece, out, out_row,
    CHANNELS: tl.constexpr, K: tl.constexpr, SPAN: tl.constexpr, TOGETHER: tl.constexpr,
    BLOCK_C: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    first, part = tl.program_id(1), tl.program_id(2)
    piece = tl.load(chunk_piece + first)
    begin = tl.load(chunk_start + tl.load(piece_chunk + piece))
    chunks_end = tl.load(piece_chunk + piece + 1)
    start = tl.load(chunk_start + first)
    depth = start - begin
    source = tl.load(routes + piece).to(tl.int64)
    target = tl.load(routes + route + piece).to(tl.int64)
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = c < CHANNELS
    # Only the first program of a piece's first chunk reads the window that the piece starts from, so it may
    # store the final window in the same slot. It also takes the first rows of the chunks that begin within a
    # window's length of the start. Chunks before the last of these are shorter, so the rows are contiguous.
    end = first + 1
    if part == 0:
        if depth == 0:
            while (end < chunks_end) & (tl.load(chunk_start + end) - begin < K - 1):
                end += 1
        elif depth < K - 1:
            end = first
    at_first = start + part * SPAN
    stop = at_first
    if end > first:
        stop = tl.minimum(tl.load(chunk_start + end), tl.load(chunk_start + end - 1) + (part + 1) * SPAN)
    if at_first < stop:
        # The K-1 inputs before the first row, from the window or from the rows before.
        fresh = depth + part == 0
        window_mask = c < tl.where(fresh, extent_at(source, CHANNELS), 0)
        row_mask_before = c < tl.where(fresh, 0, CHANNELS)
        past = ()
        for k in tl.static_range(K - 1):
            before = x + (at_first - (K - 1) + k).to(tl.int64) * x_row
            value = load_inputs(before + c, row_mask_before, CHANNELS, GATED)
            place = window + source * window_slab + k * window_row + c
            window_value = tl.load(place, mask=window_mask, other=0.0).to(tl.float32)
            past = past + (tl.where(fresh, window_value, value.to(tl.float32)),)
        factors = ()
        for k in tl.static_range(K):
            factors = factors + (tl.load(weight + k * CHANNELS + c, mask=inside, other=0.0).to(tl.float32),)
        base = tl.zeros([BLOCK_C], tl.float32)
        if bias is not None:
            base += tl.load(bias + c, mask=inside, other=0.0).to(tl.float32)
        for rows_done in range(0, stop - at_first, TOGETHER):
            row_number = at_first + rows_done
            inputs = past
            for r in tl.static_range(TOGETHER):
                row_mask = c < tl.where(row_number + r < stop, CHANNELS, 0)
                row = x + (row_number + r).to(tl.int64) * x_row
                inputs = inputs + (load_inputs(row + c, row_mask, CHANNELS, GATED).to(tl.float32),)
            for r in tl.static_range(TOGETHER):
                # Sums follow the order of the inputs, so the cuts of a prompt change no bit.
                sums = base
                for k in tl.static_range(K):
                    sums += inputs[r + k] * factors[k]
                row_mask = c < tl.where(row_number + r < stop, CHANNELS, 0)
                if GATED:
                    gates = x + (row_number + r).to(tl.int64) * x_row
                    y = sums * tl.load(gates + CHANNELS + c, mask=row_mask, other=0.0).to(tl.float32)
                else:
                    y = sums * tl.sigmoid(sums)
                tl.store(
                    out + (row_number + r).to(tl.int64) * out_row + c,
                    y.to(out.dtype.element_ty),
                    mask=row_mask,
                )
            past = inputs[TOGETHER:]
    if part == 0:
        for chunk in range(first, end):
            track = tl.load(chunk_track + chunk).to(tl.int64)
            if track >= 0:
                cut = tl.load(chunk_start + chunk + 1)
                _store_window(
                    x, x_row, window, window_slab, window_row, source, track, begin, cut, c, CHANNELS, K,
                    GATED,
                )  # fmt: skip
        if depth == 0:
            cut = tl.load(chunk_start + chunks_end)
            _store_window(
                x, x_row, window, window_slab, window_row, source, target, begin, cut, c, CHANNELS, K,
                GATED,
            )  # fmt: skip
