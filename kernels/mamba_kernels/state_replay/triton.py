# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Decode step of the Mamba2 recurrence with a ring, on a GPU; see README.md."""

import torch
import triton
import triton.language as tl

from mamba_kernels.scan_inputs import ScanInputs
from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.state_replay.ring import RingPlan, check_ring, ring_arguments, scan_width
from mamba_kernels.state_update.triton import ELEMENTS
from mamba_kernels.triton_support import (
    LOG2_E_CONSTANT,
    KernelCall,
    Launch,
    as_stored,
    block_of,
    ceil_div,
    check,
    check_scan,
    extent_at,
    launch_for,
    scan_arguments,
    softplus,
)


def state_replay(
    state: torch.Tensor,
    inputs: ScanInputs,
    plan: SlotPlan,
    lanes: RingPlan,
    ring: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Compute one step for each row, as the reference does; write `out`, and `state` or `ring`.

    `state` is [slabs, H, P, N], N dense; `out` is [n, H, P], P dense. Raises WrongArgument.
    """
    call(state, inputs, plan.device_routes, plan.device_noise, lanes.device_rows, ring, out).run()


def call(
    state: torch.Tensor,
    inputs: ScanInputs,
    routes: torch.Tensor,
    noise: torch.Tensor,
    lanes: torch.Tensor,
    ring: torch.Tensor,
    out: torch.Tensor,
) -> KernelCall:
    """Check the arguments of `state_replay` and return its launch.

    `routes` are [3, n] int32 and `noise` is [n] int32 of a `SlotPlan`; `lanes` are [3, n] int32 of a
    `RingPlan`.
    """
    n, H, P, G, N = check_scan(state, inputs, out)
    check("routes", routes, (3, n), dtypes=(torch.int32,), device=state.device)
    check("noise", noise, (n,), dtypes=(torch.int32,), device=state.device)
    check("lanes", lanes, (3, n), dtypes=(torch.int32,), device=state.device)
    check("dt", inputs.dt, (n, H), dtypes=(inputs.x.dtype,))
    check_ring(ring, inputs.x.dtype, state.device, scan_width(H, P, G, N))
    width = block_of(N)
    rows = block_of(P, most=max(1, ELEMENTS // width))
    launch = launch_for(
        "state_replay",
        state.device,
        f"H{H} P{P} N{N} {state.dtype} n{block_of(n)}",
        Launch(num_warps=max(1, rows * width // 512), blocks={"P": rows}),
    )
    rows = launch.blocks["P"]
    return KernelCall(
        _state_replay,
        (ceil_div(P, rows) * H, n),
        {**scan_arguments(state, inputs, routes, out), **ring_arguments(noise, lanes, ring)},
        {"H": H, "P": P, "G": G, "N": N, "BLOCK_P": rows, "BLOCK_N": width},
        launch,
    )


@triton.jit
def _folded(h, x, b, dt, A, dt_bias, dt_min, dt_max):
    """Return the state `h`, in registers, after one token, in the order of operations of a plain step."""
    step = tl.minimum(tl.maximum(softplus(dt.to(tl.float32) + dt_bias), dt_min), dt_max)
    decay = tl.exp2(step * A * LOG2_E_CONSTANT)
    return h * decay + (x.to(tl.float32) * step)[:, None] * b.to(tl.float32)[None, :]


@triton.jit(
    do_not_specialize=["route", "lane_row"], do_not_specialize_on_alignment=["routes", "noise", "lanes"]
)
def _state_replay(
    state, state_slab, state_head, state_row, x, x_row, x_head, dt, dt_row, A, B, B_row, B_group,
    C, C_row, C_group, D, dt_bias, dt_min, dt_max, routes, route, out, out_row, out_head, noise,
    lanes, lane_row, ring, ring_lane, ring_input,
    H: tl.constexpr, P: tl.constexpr, G: tl.constexpr, N: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    blocks: tl.constexpr = (P + BLOCK_P - 1) // BLOCK_P
    block, head = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    group = head // (H // G)
    row = tl.program_id(1).to(tl.int64)
    source = tl.load(routes + row).to(tl.int64)
    lane = tl.load(lanes + row).to(tl.int64)
    waiting = tl.load(lanes + lane_row + row)
    writes = tl.load(lanes + 2 * lane_row + row) > 0
    target = tl.where(writes, tl.load(routes + route + row), -1).to(tl.int64)
    track = tl.where(writes, tl.load(routes + 2 * route + row), -1).to(tl.int64)
    kept = tl.where(writes, -1, lane)

    p, n = block * BLOCK_P + tl.arange(0, BLOCK_P), tl.arange(0, BLOCK_N)
    rows, columns = p < P, n < N
    offsets = head * state_head + p[:, None] * state_row + n[None, :]
    # Nothing is read for a fresh state: the padding slot may hold NaN.
    source_mask = rows[:, None] & (n < extent_at(source, N))[None, :]
    target_mask = rows[:, None] & (n < extent_at(target, N))[None, :]
    track_mask = rows[:, None] & (n < extent_at(track, N))[None, :]
    h = tl.load(
        state + source * state_slab + offsets, mask=source_mask, other=0.0, eviction_policy="evict_first"
    )
    h = h.to(tl.float32)

    rate, bias = tl.load(A + head).to(tl.float32), tl.load(dt_bias + head).to(tl.float32)
    own_x = tl.load(x + row * x_row + head * x_head + p, mask=rows, other=0.0)
    own_b = tl.load(B + row * B_row + group * B_group + n, mask=columns, other=0.0)
    own_dt = tl.load(dt + row * dt_row + head)
    c = tl.load(C + row * C_row + group * C_group + n, mask=columns, other=0.0).to(tl.float32)
    places = ring + lane * ring_lane
    x_place, b_place, dt_place = head * P + p, H * P + group * N + n, H * P + G * N + head
    for i in range(waiting):
        earlier = places + i * ring_input
        earlier_x = tl.load(earlier + x_place, mask=rows, other=0.0)
        earlier_b = tl.load(earlier + b_place, mask=columns, other=0.0)
        h = _folded(h, earlier_x, earlier_b, tl.load(earlier + dt_place), rate, bias, dt_min, dt_max)
    h = _folded(h, own_x, own_b, own_dt, rate, bias, dt_min, dt_max)
    y = tl.sum(h * c[None, :], 1) + own_x.to(tl.float32) * tl.load(D + head).to(tl.float32)
    tl.store(out + row * out_row + head * out_head + p, y.to(out.dtype.element_ty), mask=rows)

    stored = as_stored(h, state, head, p, n, noise + row, P, N)
    tl.store(state + target * state_slab + offsets, stored, mask=target_mask, eviction_policy="evict_first")
    # The same registers: state and checkpoint cannot disagree.
    tl.store(state + track * state_slab + offsets, stored, mask=track_mask, eviction_policy="evict_first")

    # Programs of this launch read the inputs before this one alone, so nobody waits for it.
    places += waiting * ring_input
    tl.store(places + x_place, own_x, mask=p < extent_at(kept, P))
    first = tl.where(block == 0, kept, -1)
    tl.store(places + dt_place, own_dt, mask=first >= 0)
    first = tl.where(head % (H // G) == 0, first, -1)
    tl.store(places + b_place, own_b, mask=n < extent_at(first, N))
