# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Causal convolution over prefill pieces on a GPU, by chunk and block of channels: see README.md."""

import torch
import triton
import triton.language as tl

from mamba_kernels.ssd_prefill.plan import ChunkPlan
from mamba_kernels.triton_support import (
    KernelCall,
    Launch,
    block_of,
    ceil_div,
    check,
    check_rows,
    extent_at,
    launch_for,
)


def conv1d_prefill(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, window: torch.Tensor, plan: ChunkPlan
) -> torch.Tensor:
    """As the reference: silu(sum_k weight[k] * input[t - K + 1 + k] + bias).

    x: [T, C], rows may be strided; weight: [K, C]; bias: [C]; window: [slabs, K-1, C], C dense, written at
    the plan's targets and checkpoints. Returns [T, C] in the type of x. Raises UnsupportedArgument.
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
) -> KernelCall:
    """The launch that writes `out` [T, C]."""
    check("x", x, (None, None))
    check_rows("x", x, plan.tokens)
    channels = x.shape[1]
    check("weight", weight, (None, channels), device=x.device, dense_from=0)
    K = len(weight)
    if bias is not None:
        check("bias", bias, (channels,), device=x.device)
    check("window", window, (None, K - 1, channels), device=x.device)
    launch = launch_for(
        "conv1d_prefill",
        x.device,
        f"C{channels} K{K} {x.dtype}",
        Launch(num_warps=4, blocks={"T": 32, "C": block_of(channels, least=16, most=128)}),
    )
    chunks, routes = plan.on_device, plan.slots.device_routes
    return KernelCall(
        _conv1d_prefill,
        (ceil_div(channels, launch.blocks["C"]), plan.chunks),
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
        {"CHANNELS": channels, "K": K, "BLOCK_T": launch.blocks["T"], "BLOCK_C": launch.blocks["C"]},
        launch,
    )


@triton.jit
def _store_window(
    x, x_row, window, window_slab, window_row, source, target, begin, end, c, CHANNELS: tl.constexpr,
    K: tl.constexpr,
):  # fmt: skip
    """The K-1 inputs that end before row `end` of the piece that begins at `begin`, to slot `target`."""
    # Rows of this program may still be on their way from the window that is overwritten here.
    tl.debug_barrier()
    inside, kept = c < CHANNELS, c < extent_at(source, CHANNELS)
    for k in tl.static_range(K - 1):
        row = end - (K - 1) + k
        here = c < extent_at(row - begin, CHANNELS)
        fresh = tl.load(x + row.to(tl.int64) * x_row + c, mask=here, other=0.0)
        # Of a piece shorter than the window the older inputs move up: place k is read from a later one.
        older = kept & (c < extent_at(begin - 1 - row, CHANNELS))
        at = window + source * window_slab + (end - begin + k) * window_row + c
        value = tl.where(here, fresh, tl.load(at, mask=older, other=0.0).to(fresh.dtype))
        at = window + target * window_slab + k * window_row + c
        tl.store(at, value.to(window.dtype.element_ty), mask=inside)


@triton.jit(
    do_not_specialize=["route"],
    do_not_specialize_on_alignment=["routes", "piece_chunk", "chunk_start", "chunk_track", "chunk_piece"],
)
def _conv1d_prefill(
    x, x_row, weight, bias, window, window_slab, window_row, routes, route, piece_chunk, chunk_start,
    chunk_track, chunk_piece, out, out_row,
    CHANNELS: tl.constexpr, K: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(1)
    piece = tl.load(chunk_piece + first)
    begin = tl.load(chunk_start + tl.load(piece_chunk + piece))
    chunks_end = tl.load(piece_chunk + piece + 1)
    depth = tl.load(chunk_start + first) - begin
    source = tl.load(routes + piece).to(tl.int64)
    target = tl.load(routes + route + piece).to(tl.int64)
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = c < CHANNELS
    # Only the program of a piece's first chunk reads the window that the piece starts from, and so may store
    # the final one in its place: it takes the chunks that begin within a window's length of the start too.
    end = first + 1
    if depth == 0:
        while (end < chunks_end) & (tl.load(chunk_start + end) - begin < K - 1):
            end += 1
    elif depth < K - 1:
        end = first
    for chunk in range(first, end):
        start, stop = tl.load(chunk_start + chunk), tl.load(chunk_start + chunk + 1)
        for at in range(start, stop, BLOCK_T):
            t = at + tl.arange(0, BLOCK_T)
            sums = tl.zeros([BLOCK_T, BLOCK_C], tl.float32)
            for k in tl.static_range(K):
                factor = tl.load(weight + k * CHANNELS + c, mask=inside, other=0.0).to(tl.float32)
                row = t - (K - 1) + k
                there = ((t < stop) & (row >= begin))[:, None] & inside[None, :]
                value = tl.load(x + row.to(tl.int64)[:, None] * x_row + c[None, :], mask=there, other=0.0)
                sums += value.to(tl.float32) * factor[None, :]
            if at - begin < K - 1:
                kept = c < extent_at(source, CHANNELS)
                for k in tl.static_range(K - 1):
                    factor = tl.load(weight + k * CHANNELS + c, mask=inside, other=0.0).to(tl.float32)
                    place = t - begin + k
                    there = ((t < stop) & (place < K - 1))[:, None] & kept[None, :]
                    past = window + source * window_slab + place[:, None] * window_row + c[None, :]
                    sums += tl.load(past, mask=there, other=0.0).to(tl.float32) * factor[None, :]
            if bias is not None:
                sums += tl.load(bias + c, mask=inside, other=0.0).to(tl.float32)[None, :]
            y = sums * tl.sigmoid(sums)
            there = (t < stop)[:, None] & inside[None, :]
            rows = out + t.to(tl.int64)[:, None] * out_row + c[None, :]
            tl.store(rows, y.to(out.dtype.element_ty), mask=there)
        track = tl.load(chunk_track + chunk).to(tl.int64)
        if track >= 0:
            _store_window(
                x, x_row, window, window_slab, window_row, source, track, begin, stop, c, CHANNELS, K
            )
    if depth == 0:
        stop = tl.load(chunk_start + chunks_end)
        _store_window(x, x_row, window, window_slab, window_row, source, target, begin, stop, c, CHANNELS, K)
