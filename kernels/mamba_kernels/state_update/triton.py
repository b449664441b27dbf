# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Decode step of the Mamba2 recurrence on a GPU, in place; see README.md."""

import torch
import triton
import triton.language as tl

from mamba_kernels.scan_inputs import ScanInputs
from mamba_kernels.slot_plan import SlotPlan
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

ELEMENTS = 2048
"""State elements of a program of four warps: each thread has four loads of 128 bits in flight, and the
program reads `B` and `C` once for all its elements."""


def state_update(state: torch.Tensor, inputs: ScanInputs, plan: SlotPlan, out: torch.Tensor) -> None:
    """Compute one step of the recurrence of `ScanInputs` for each row.

    `state` is [slabs, H, P, N], N dense, written at the plan's targets and tracking slots; `out` is [n, H,
    P], P dense, written. Raises WrongArgument.
    """
    call(state, inputs, plan.device_routes, plan.device_noise, out).run()


def call(
    state: torch.Tensor, inputs: ScanInputs, routes: torch.Tensor, noise: torch.Tensor, out: torch.Tensor
) -> KernelCall:
    """Check the arguments of `state_update` and return its launch.

    `routes` are source (-1 = zero state), target and tracking slot (-1 = none) of each row, [3, n] int32;
    `noise` is the word by which a float16 state is rounded, [n] int32.
    """
    n, H, P, G, N = check_scan(state, inputs, out)
    check("routes", routes, (3, n), dtypes=(torch.int32,), device=state.device)
    check("noise", noise, (n,), dtypes=(torch.int32,), device=state.device)
    width = block_of(N)
    rows = block_of(P, most=max(1, ELEMENTS // width))
    launch = launch_for(
        "state_update",
        state.device,
        f"H{H} P{P} N{N} {state.dtype} n{block_of(n)}",
        Launch(num_warps=max(1, rows * width // 512), blocks={"P": rows}),
    )
    rows = launch.blocks["P"]
    return KernelCall(
        _state_update,
        (ceil_div(P, rows) * H, n),
        {**scan_arguments(state, inputs, routes, out), "noise": noise},
        {"P": P, "N": N, "HEADS_PER_GROUP": H // G, "BLOCK_P": rows, "BLOCK_N": width},
        launch,
    )


@triton.jit(do_not_specialize=["route"], do_not_specialize_on_alignment=["routes", "noise"])
def _state_update(
    state, state_slab, state_head, state_row, x, x_row, x_head, dt, dt_row, A, B, B_row, B_group,
    C, C_row, C_group, D, dt_bias, dt_min, dt_max, routes, route, out, out_row, out_head, noise,
    P: tl.constexpr, N: tl.constexpr, HEADS_PER_GROUP: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    blocks: tl.constexpr = (P + BLOCK_P - 1) // BLOCK_P
    # Blocks of one head, then heads of one group are neighbours, so B and C are in the caches.
    head = tl.program_id(0) // blocks
    group = head // HEADS_PER_GROUP
    row = tl.program_id(1).to(tl.int64)
    source = tl.load(routes + row).to(tl.int64)
    target = tl.load(routes + route + row).to(tl.int64)
    track = tl.load(routes + 2 * route + row).to(tl.int64)

    p = (tl.program_id(0) % blocks) * BLOCK_P + tl.arange(0, BLOCK_P)
    n = tl.arange(0, BLOCK_N)
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

    step = softplus(tl.load(dt + row * dt_row + head).to(tl.float32) + tl.load(dt_bias + head).to(tl.float32))
    step = tl.minimum(tl.maximum(step, dt_min), dt_max)
    decay = tl.exp2(step * tl.load(A + head).to(tl.float32) * LOG2_E_CONSTANT)
    inputs = tl.load(x + row * x_row + head * x_head + p, mask=rows, other=0.0).to(tl.float32)
    b = tl.load(B + row * B_row + group * B_group + n, mask=columns, other=0.0).to(tl.float32)
    c = tl.load(C + row * C_row + group * C_group + n, mask=columns, other=0.0).to(tl.float32)
    h = h * decay + (inputs * step)[:, None] * b[None, :]
    y = tl.sum(h * c[None, :], 1) + inputs * tl.load(D + head).to(tl.float32)
    tl.store(out + row * out_row + head * out_head + p, y.to(out.dtype.element_ty), mask=rows)

    stored = as_stored(h, state, head, p, n, noise + row, P, N)
    tl.store(state + target * state_slab + offsets, stored, mask=target_mask, eviction_policy="evict_first")
    # The same registers: state and checkpoint cannot disagree.
    tl.store(state + track * state_slab + offsets, stored, mask=track_mask, eviction_policy="evict_first")
