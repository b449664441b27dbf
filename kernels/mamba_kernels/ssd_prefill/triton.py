# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# Tuples grow while a kernel is compiled, and Triton's compiler does not support unpacking.
# mypy: disable-error-code="assignment"
# ruff: noqa: RUF005
"""The chunked scan on a GPU with the state on chip from a piece's start to its end; see README.md."""

import torch
import triton
import triton.language as tl

from mamba_kernels.scan_inputs import ScanInputs
from mamba_kernels.ssd_prefill.plan import ChunkPlan
from mamba_kernels.triton_support import (
    LOG2_E_CONSTANT,
    KernelCall,
    Launch,
    as_stored,
    block_of,
    ceil_div,
    check_plan,
    check_scan,
    dot_dtype,
    extent_at,
    launch_for,
    processors,
    scan_arguments,
    softplus,
)

MIN_TILE = 16
"""Smallest extent of a product's tile."""
COLUMNS = 64
"""Columns of a state that are multiplied at once: operands of all columns would leave no registers for it."""


def ssd_prefill(state: torch.Tensor, inputs: ScanInputs, plan: ChunkPlan, out: torch.Tensor) -> None:
    """Compute the recurrence of `ScanInputs` over the plan's chunks.

    `state` is [slabs, H, P, N], N dense, read and written at the plan's slots; `out` is [T, H, P], P dense,
    written; T = plan.tokens. Raises WrongArgument.
    """
    for call in calls(state, inputs, plan, out):
        call.run()


def calls(state: torch.Tensor, inputs: ScanInputs, plan: ChunkPlan, out: torch.Tensor) -> list[KernelCall]:
    """Return the launches: a program for each piece, head and block of the head's P rows of state.

    There are three launches where pieces are long and such programs are few, and one otherwise.
    """
    _, H, P, G, N = check_scan(state, inputs, out)
    check_plan("x", inputs.x, plan.tokens, plan.on_device.chunk_start.device)
    width = block_of(N, least=MIN_TILE)
    launch = launch_for(
        "ssd_prefill",
        state.device,
        f"P{P} N{N} {inputs.x.dtype}{' float16 states' if state.dtype == torch.float16 else ''}",
        _default(P, width, inputs.x.dtype),
    )
    programs = ceil_div(P, launch.blocks["P"]) * H
    # Two programs of four warps fit a processor: each thread has the largest possible number of registers.
    at_once = processors(state.device) * max(1, 8 // launch.num_warps)
    segments = plan.segments(at_once // programs)
    chunks, routes = plan.on_device, plan.slots.device_routes
    scan = {
        **scan_arguments(state, inputs, routes, out),
        "piece_chunk": chunks.piece_chunk,
        "chunk_start": chunks.chunk_start,
        "chunk_track": chunks.chunk_track,
        "chunk_noise": chunks.chunk_noise,
    }
    constants = {
        "P": P,
        "N": N,
        "HEADS_PER_GROUP": H // G,
        "KIND": dot_dtype(inputs.x.dtype),
        # Three products of 11 bits each: float32 rows serve exactness, not speed.
        "PRECISION": "tf32x3",
        "BLOCK_P": launch.blocks["P"],
        "BLOCK_N": min(width, launch.blocks["N"]),
        "BLOCK_T": launch.blocks["T"],
    }
    if segments is None:
        begin = {"begin": state, **_strides("begin", state)}
        grid = (programs, len(plan.slots.target_slots))
        return [KernelCall(_ssd_prefill, grid, {**scan, **begin}, constants, launch)]
    # Always float32, whatever the type of the states: these are not checkpoints.
    begin_of = state.new_empty(segments.count, H, P, N, dtype=torch.float32)
    decay = state.new_empty(segments.count, H, dtype=torch.float32)
    begin = {"begin": begin_of, **_strides("begin", begin_of)}
    contribution_names = (
        "x",
        "x_row",
        "x_head",
        "dt",
        "dt_row",
        "A",
        "B",
        "B_row",
        "B_group",
        "dt_bias",
        "dt_min",
        "dt_max",
    )
    of_segments = {
        "piece_chunk": segments.segment_chunk,
        "routes": segments.routes,
        "route": segments.routes.stride(0),
    }
    contribute = {
        **{name: scan[name] for name in contribution_names},
        **begin,
        **of_segments,
        "chunk_start": scan["chunk_start"],
        "decay": decay,
        "heads": H,
    }
    names = ("state", "state_slab", "state_head", "state_row", "routes")
    join = {
        **{name: scan[name] for name in names},
        **begin,
        "decay": decay,
        "heads": H,
        "piece_segment": segments.piece_segment,
    }
    sizes = {"P": P, "N": N, "BLOCK_P": launch.blocks["P"], "BLOCK_N": width}
    # The single product of this kernel leaves registers for whole rows of 16 bits.
    one_product = constants if inputs.x.dtype == torch.float32 else {**constants, "BLOCK_N": width}
    return [
        KernelCall(_contribution, (programs, segments.count), contribute, one_product, launch),
        KernelCall(_join, (programs, len(plan.slots.target_slots)), join, sizes, Launch(launch.num_warps)),
        KernelCall(
            _ssd_prefill, (programs, segments.count), {**scan, **begin, **of_segments}, constants, launch
        ),
    ]


def _default(P: int, width: int, rows: torch.dtype) -> Launch:
    """Return the largest tiles with which state and products stay in registers on every supported GPU.

    While a tile is multiplied, the loads of the next one are in flight.
    """
    if rows == torch.float32:
        # A float32 operand takes the registers of two while it is multiplied.
        return Launch(4 if width <= 128 else 8, 2, {"P": MIN_TILE, "T": MIN_TILE, "N": COLUMNS // 2})
    tokens = 32 if width <= 128 else MIN_TILE
    return Launch(4, 2, {"P": block_of(P, least=MIN_TILE, most=32), "T": tokens, "N": COLUMNS})


def _strides(name: str, states: torch.Tensor) -> dict[str, int]:
    return {
        f"{name}_{part}": states.stride(dimension) for dimension, part in enumerate(("slab", "head", "row"))
    }


@triton.jit(
    do_not_specialize=["route"],
    do_not_specialize_on_alignment=["routes", "piece_chunk", "chunk_start", "chunk_track", "chunk_noise"],
)
def _ssd_prefill(
    state, state_slab, state_head, state_row, x, x_row, x_head, dt, dt_row, A, B, B_row, B_group,
    C, C_row, C_group, D, dt_bias, dt_min, dt_max, routes, route, piece_chunk, chunk_start, chunk_track,
    chunk_noise, begin, begin_slab, begin_head, begin_row, out, out_row, out_head,
    P: tl.constexpr, N: tl.constexpr, HEADS_PER_GROUP: tl.constexpr, KIND: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    blocks: tl.constexpr = (P + BLOCK_P - 1) // BLOCK_P
    parts: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    head = tl.program_id(0) // blocks
    piece = tl.program_id(1)
    group = head // HEADS_PER_GROUP
    source = tl.load(routes + piece).to(tl.int64)
    target = tl.load(routes + route + piece).to(tl.int64)
    p = (tl.program_id(0) % blocks) * BLOCK_P + tl.arange(0, BLOCK_P)
    n = tl.arange(0, BLOCK_N)
    i = tl.arange(0, BLOCK_T)
    rows = p < P
    first_at = head * begin_head + p[:, None] * begin_row + n[None, :]
    states = ()
    for part in tl.static_range(parts):
        # Nothing is read for a fresh state: the padding slot may hold NaN.
        source_mask = rows[:, None] & (part * BLOCK_N + n < extent_at(source, N))[None, :]
        pointers = begin + source * begin_slab + first_at + part * BLOCK_N
        states = states + (tl.load(pointers, mask=source_mask, other=0.0).to(tl.float32),)

    bias = tl.load(dt_bias + head).to(tl.float32)
    rate = tl.load(A + head).to(tl.float32) * LOG2_E_CONSTANT
    skip = tl.load(D + head).to(tl.float32)
    for chunk in range(tl.load(piece_chunk + piece), tl.load(piece_chunk + piece + 1)):
        stop = tl.load(chunk_start + chunk + 1)
        for first in range(tl.load(chunk_start + chunk), stop, BLOCK_T):
            inside = first + i < stop
            t = (first + i).to(tl.int64)
            step = softplus(tl.load(dt + t * dt_row + head, mask=inside, other=0.0).to(tl.float32) + bias)
            # dt = 0 beyond the end leaves the state unchanged and adds nothing.
            step = tl.where(inside, tl.minimum(tl.maximum(step, dt_min), dt_max), 0.0)
            # Exponents of two from the tile's start, inclusive; they never rise, so the last is the smallest.
            log = tl.cumsum(step * rate, 0)
            total = tl.min(log, 0)

            x_at = x + t[:, None] * x_row + head * x_head + p[None, :]
            # KIND is float32 in the interpreter; otherwise products take the inputs in their own type.
            inputs = tl.load(x_at, mask=inside[:, None] & rows[None, :], other=0.0).to(KIND)
            b_at = B + t[:, None] * B_row + group * B_group + n[None, :]
            c_at = C + t[:, None] * C_row + group * C_group + n[None, :]
            pairs = tl.zeros([BLOCK_T, BLOCK_T], tl.float32)
            y = tl.zeros([BLOCK_T, BLOCK_P], tl.float32)
            b_parts = ()
            for part in tl.static_range(parts):
                mask = inside[:, None] & (part * BLOCK_N + n < N)[None, :]
                b = tl.load(b_at + part * BLOCK_N, mask=mask, other=0.0).to(KIND)
                c = tl.load(c_at + part * BLOCK_N, mask=mask, other=0.0).to(KIND)
                pairs = tl.dot(c, tl.trans(b), pairs, input_precision=PRECISION)
                y = tl.dot(c, tl.trans(states[part]).to(KIND), y, input_precision=PRECISION)
                b_parts = b_parts + (b,)
                if tl.float32 == KIND:
                    # Otherwise the operands of all parts are loaded before the first one is multiplied.
                    tl.debug_barrier()
            # Differences are taken and masked before the exponential: no factor ever overflows.
            log_decay = tl.where(i[:, None] >= i[None, :], log[:, None] - log[None, :], float("-inf"))
            pairs = pairs * tl.exp2(log_decay) * step[None, :]
            y *= tl.exp2(log)[:, None]
            y = tl.dot(pairs.to(KIND), inputs, y, input_precision=PRECISION)
            y += inputs.to(tl.float32) * skip
            y_at = out + t[:, None] * out_row + head * out_head + p[None, :]
            tl.store(y_at, y.to(out.dtype.element_ty), mask=inside[:, None] & rows[None, :])

            weighted = tl.trans((inputs.to(tl.float32) * (tl.exp2(total - log) * step)[:, None]).to(KIND))
            following = ()
            for part in tl.static_range(parts):
                decayed = states[part] * tl.exp2(total)
                following = following + (tl.dot(weighted, b_parts[part], decayed, input_precision=PRECISION),)
            states = following
        track = tl.load(chunk_track + chunk).to(tl.int64)
        if track >= 0:
            # Equal to `head`. A compiler that knew this would compute places and noise of each element before
            # the loop, and keep all of them in registers during the loop over tokens.
            head_of_store = tl.where(chunk >= 0, head, 0)
            checkpoint = state + track * state_slab + head_of_store * state_head + p[:, None] * state_row
            for part in tl.static_range(parts):
                columns = part * BLOCK_N + n
                rounded = as_stored(states[part], state, head_of_store, p, columns, chunk_noise + chunk, P, N)
                tl.store(checkpoint + columns[None, :], rounded, mask=rows[:, None] & (columns < N)[None, :])
    last = tl.load(piece_chunk + piece + 1) - 1
    head_of_store = tl.where(last >= 0, head, 0)
    final = state + target * state_slab + head_of_store * state_head + p[:, None] * state_row
    for part in tl.static_range(parts):
        columns = part * BLOCK_N + n
        rounded = as_stored(states[part], state, head_of_store, p, columns, chunk_noise + last, P, N)
        tl.store(
            final + columns[None, :], rounded, mask=rows[:, None] & (columns < extent_at(target, N))[None, :]
        )


@triton.jit(
    do_not_specialize_on_alignment=["routes", "piece_chunk", "chunk_start"], do_not_specialize=["route"]
)
def _contribution(
    x, x_row, x_head, dt, dt_row, A, B, B_row, B_group, dt_bias, dt_min, dt_max, routes, route, piece_chunk,
    chunk_start, begin, begin_slab, begin_head, begin_row, decay, heads,
    P: tl.constexpr, N: tl.constexpr, HEADS_PER_GROUP: tl.constexpr, KIND: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """Store the sum that each segment adds to the state, and the segment's total decay.

    The sum is stored where the state at the segment's start will be. A piece's last segment is skipped, since
    no segment follows it.
    """
    blocks: tl.constexpr = (P + BLOCK_P - 1) // BLOCK_P
    head = tl.program_id(0) // blocks
    segment = tl.program_id(1)
    group = head // HEADS_PER_GROUP
    p = (tl.program_id(0) % blocks) * BLOCK_P + tl.arange(0, BLOCK_P)
    n = tl.arange(0, BLOCK_N)
    i = tl.arange(0, BLOCK_T)
    parts: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    rows = p < P
    bias = tl.load(dt_bias + head).to(tl.float32)
    rate = tl.load(A + head).to(tl.float32) * LOG2_E_CONSTANT
    if tl.load(routes + route + segment) < 0:
        states = ()
        for _ in tl.static_range(parts):
            states = states + (tl.zeros([BLOCK_P, BLOCK_N], tl.float32),)
        total_decay = bias * 0.0
        for chunk in range(tl.load(piece_chunk + segment), tl.load(piece_chunk + segment + 1)):
            stop = tl.load(chunk_start + chunk + 1)
            for first in range(tl.load(chunk_start + chunk), stop, BLOCK_T):
                inside = first + i < stop
                t = (first + i).to(tl.int64)
                step = softplus(tl.load(dt + t * dt_row + head, mask=inside, other=0.0).to(tl.float32) + bias)
                step = tl.where(inside, tl.minimum(tl.maximum(step, dt_min), dt_max), 0.0)
                log = tl.cumsum(step * rate, 0)
                total = tl.min(log, 0)
                x_at = x + t[:, None] * x_row + head * x_head + p[None, :]
                inputs = tl.load(x_at, mask=inside[:, None] & rows[None, :], other=0.0).to(KIND)
                weighted = (inputs.to(tl.float32) * (tl.exp2(total - log) * step)[:, None]).to(KIND)
                b_at = B + t[:, None] * B_row + group * B_group + n[None, :]
                following = ()
                for part in tl.static_range(parts):
                    b_mask = inside[:, None] & (part * BLOCK_N + n < N)[None, :]
                    b = tl.load(b_at + part * BLOCK_N, mask=b_mask, other=0.0).to(KIND)
                    decayed = states[part] * tl.exp2(total)
                    added = tl.dot(tl.trans(weighted), b, decayed, input_precision=PRECISION)
                    following = following + (added,)
                states = following
                total_decay += total
        offsets = segment * begin_slab + head * begin_head + p[:, None] * begin_row + n[None, :]
        for part in tl.static_range(parts):
            columns = part * BLOCK_N + n
            mask = rows[:, None] & (columns < N)[None, :]
            tl.store(begin + offsets + part * BLOCK_N, states[part], mask=mask)
        # All blocks of the head store the same value.
        tl.store(decay + segment * heads + head, total_decay)


@triton.jit(do_not_specialize_on_alignment=["routes", "piece_segment"])
def _join(
    state, state_slab, state_head, state_row, routes, begin, begin_slab, begin_head, begin_row, decay, heads,
    piece_segment, P: tl.constexpr, N: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Replace what each segment of a piece adds to the state by the state from which the segment starts."""
    blocks: tl.constexpr = (P + BLOCK_P - 1) // BLOCK_P
    head = tl.program_id(0) // blocks
    piece = tl.program_id(1)
    source = tl.load(routes + piece).to(tl.int64)
    p = (tl.program_id(0) % blocks) * BLOCK_P + tl.arange(0, BLOCK_P)
    n = tl.arange(0, BLOCK_N)
    inside = (p < P)[:, None] & (n < N)[None, :]
    source_mask = (p < P)[:, None] & (n < extent_at(source, N))[None, :]
    offsets = head * state_head + p[:, None] * state_row + n[None, :]
    s = tl.load(state + source * state_slab + offsets, mask=source_mask, other=0.0).to(tl.float32)
    first_pointers = begin + head * begin_head + p[:, None] * begin_row + n[None, :]
    last = tl.load(piece_segment + piece + 1) - 1
    for segment in range(tl.load(piece_segment + piece), last):
        place = first_pointers + segment * begin_slab
        contribution = tl.load(place, mask=inside, other=0.0)
        tl.store(place, s, mask=inside)
        s = s * tl.exp2(tl.load(decay + segment * heads + head)) + contribution
    tl.store(first_pointers + last * begin_slab, s, mask=inside)
