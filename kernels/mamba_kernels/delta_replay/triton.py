# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Decode step of the gated delta rule with a ring, on a GPU; see README.md."""

import torch
import triton
import triton.language as tl

from mamba_kernels.gated_delta.arguments import delta_arguments
from mamba_kernels.gated_delta.inputs import DeltaInputs
from mamba_kernels.gated_delta.triton import check_rows, with_token
from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.state_replay.ring import RingPlan, check_ring, delta_width, ring_arguments
from mamba_kernels.triton_support import (
    KernelCall,
    Launch,
    as_stored,
    block_of,
    ceil_div,
    check,
    extent_at,
    launch_for,
)

ELEMENTS = 1024
"""State elements of a program of one warp, as of the plain step."""


def gated_delta_replay(
    state: torch.Tensor,
    inputs: DeltaInputs,
    plan: SlotPlan,
    lanes: RingPlan,
    ring: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Compute one token for each row, as the reference does; write `out`, and `state` or `ring`.

    `state` is [slabs, H, V, K], K dense; `out` is [n, H, V], V dense. Raises WrongArgument.
    """
    call(state, inputs, plan.device_routes, plan.device_noise, lanes.device_rows, ring, out).run()


def call(
    state: torch.Tensor,
    inputs: DeltaInputs,
    routes: torch.Tensor,
    noise: torch.Tensor,
    lanes: torch.Tensor,
    ring: torch.Tensor,
    out: torch.Tensor,
) -> KernelCall:
    """Check the arguments of `gated_delta_replay` and return its launch.

    `routes` are [3, n] int32 and `noise` is [n] int32 of a `SlotPlan`; `lanes` are [3, n] int32 of a
    `RingPlan`.
    """
    n, H, G, V, K = check_rows(state, inputs, out)
    check("routes", routes, (3, n), dtypes=(torch.int32,), device=state.device)
    check("noise", noise, (n,), dtypes=(torch.int32,), device=state.device)
    check("lanes", lanes, (3, n), dtypes=(torch.int32,), device=state.device)
    for name in ("a", "b"):
        tensor: torch.Tensor = getattr(inputs, name)
        check(name, tensor, tensor.shape, dtypes=(inputs.v.dtype,))
    decays = K if inputs.by_channel else 1
    check_ring(ring, inputs.v.dtype, state.device, delta_width(H, V, G, K, decays))
    width = block_of(K)
    launch = launch_for(
        "gated_delta_replay",
        state.device,
        f"H{H} V{V} K{K} {state.dtype} n{block_of(n)}",
        Launch(num_warps=1, blocks={"V": block_of(V, most=max(1, ELEMENTS // width))}),
    )
    rows = launch.blocks["V"]
    return KernelCall(
        _gated_delta_replay,
        (ceil_div(V, rows) * H, n),
        {**delta_arguments(state, inputs, routes, out), **ring_arguments(noise, lanes, ring)},
        {"H": H, "V": V, "G": G, "K": K, "DECAYS": decays, "BLOCK_V": rows, "BLOCK_K": width},
        launch,
    )


@triton.jit(
    do_not_specialize=["route", "lane_row"], do_not_specialize_on_alignment=["routes", "noise", "lanes"]
)
def _gated_delta_replay(
    state, state_slab, state_head, state_row, q, q_row, q_head, k, k_row, k_head, v, v_row, v_head,
    a, a_row, b, b_row, A, dt_bias, routes, route, out, out_row, out_head, least, scale, beta_scale,
    noise, lanes, lane_row, ring, ring_lane, ring_input,
    H: tl.constexpr, V: tl.constexpr, G: tl.constexpr, K: tl.constexpr, DECAYS: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Grid (heads x blocks of BLOCK_V rows of a state, rows of the batch): add one token to each state."""
    blocks: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    block, head = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    of_key = head // (H // G)
    row = tl.program_id(1).to(tl.int64)
    source = tl.load(routes + row).to(tl.int64)
    lane = tl.load(lanes + row).to(tl.int64)
    waiting = tl.load(lanes + lane_row + row)
    writes = tl.load(lanes + 2 * lane_row + row) > 0
    target = tl.where(writes, tl.load(routes + route + row), -1).to(tl.int64)
    track = tl.where(writes, tl.load(routes + 2 * route + row), -1).to(tl.int64)
    kept = tl.where(writes, -1, lane)

    i, j = block * BLOCK_V + tl.arange(0, BLOCK_V), tl.arange(0, BLOCK_K)
    rows, columns = i < V, j < K
    offsets = head * state_head + i[:, None] * state_row + j[None, :]
    # Nothing is read for a fresh state: the padding slot may hold NaN.
    source_mask = rows[:, None] & (j < extent_at(source, K))[None, :]
    target_mask = rows[:, None] & (j < extent_at(target, K))[None, :]
    track_mask = rows[:, None] & (j < extent_at(track, K))[None, :]
    s = tl.load(
        state + source * state_slab + offsets, mask=source_mask, other=0.0, eviction_policy="evict_first"
    )
    s = s.to(tl.float32)

    by_channel: tl.constexpr = DECAYS > 1
    # One decay of a head, or one of each channel: places of both kinds have one form.
    decays = j if by_channel else 0
    of_decay = columns if by_channel else True
    rate = tl.load(A + head).to(tl.float32)
    bias = tl.load(dt_bias + head * DECAYS + decays, mask=of_decay, other=0.0).to(tl.float32)
    own_a = tl.load(a + row * a_row + head * DECAYS + decays, mask=of_decay, other=0.0)
    own_b = tl.load(b + row * b_row + head)
    own_key = tl.load(k + row * k_row + of_key * k_head + j, mask=columns, other=0.0)
    own_value = tl.load(v + row * v_row + head * v_head + i, mask=rows, other=0.0)
    query = tl.load(q + row * q_row + of_key * q_head + j, mask=columns, other=0.0).to(tl.float32)
    query *= tl.rsqrt(tl.sum(query * query, 0) + least) * scale
    places = ring + lane * ring_lane
    k_place, v_place, a_place = of_key * K + j, G * K + head * V + i, G * K + H * V + head * DECAYS
    a_place = a_place + decays
    b_place = G * K + H * V + H * DECAYS + head
    for token in range(waiting):
        earlier = places + token * ring_input
        key = tl.load(earlier + k_place, mask=columns, other=0.0)
        value = tl.load(earlier + v_place, mask=rows, other=0.0)
        earlier_a = tl.load(earlier + a_place, mask=of_decay, other=0.0)
        earlier_b = tl.load(earlier + b_place)
        s = with_token(s, key, value, earlier_a, earlier_b, rate, bias, least, beta_scale, by_channel)
    s = with_token(s, own_key, own_value, own_a, own_b, rate, bias, least, beta_scale, by_channel)
    y = tl.sum(s * query[None, :], 1)
    tl.store(out + row * out_row + head * out_head + i, y.to(out.dtype.element_ty), mask=rows)

    stored = as_stored(s, state, head, i, j, noise + row, V, K)
    tl.store(state + target * state_slab + offsets, stored, mask=target_mask, eviction_policy="evict_first")
    # The same registers: state and checkpoint cannot disagree.
    tl.store(state + track * state_slab + offsets, stored, mask=track_mask, eviction_policy="evict_first")

    # Programs of this launch read the inputs before this one alone, so nobody waits for it.
    places += waiting * ring_input
    tl.store(places + v_place, own_value, mask=i < extent_at(kept, V))
    first = tl.where(block == 0, kept, -1)
    tl.store(places + a_place, own_a, mask=of_decay & (first >= 0))
    tl.store(places + b_place, own_b, mask=first >= 0)
    first = tl.where(head % (H // G) == 0, first, -1)
    tl.store(places + k_place, own_key, mask=j < extent_at(first, K))
