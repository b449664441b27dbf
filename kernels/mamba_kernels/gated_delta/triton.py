# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# Tuples grow while a kernel is compiled, and Triton's compiler does not support unpacking.
# mypy: disable-error-code="assignment"
# ruff: noqa: RUF005
"""The gated delta rule on a GPU, with the state on chip from a piece's start to its end; see README.md."""

import torch
import triton
import triton.language as tl

from mamba_kernels.gated_delta.arguments import check_delta, delta_arguments
from mamba_kernels.gated_delta.inputs import DeltaInputs
from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.ssd_prefill.plan import ChunkPlan
from mamba_kernels.triton_support import (
    LOG2_E_CONSTANT,
    KernelCall,
    Launch,
    UnsupportedArgument,
    as_stored,
    block_of,
    ceil_div,
    check,
    check_plan,
    dot_dtype,
    extent_at,
    launch_for,
    softplus,
)

STATE_TYPES = (torch.float32, torch.float16)
MAX_KEY_DIM = 256
"""Largest size of a key: a row of the state stays in registers."""
MIN_TILE = 16
"""Smallest extent of a product's tile."""


def gated_delta_update(state: torch.Tensor, inputs: DeltaInputs, plan: SlotPlan, out: torch.Tensor) -> None:
    """Compute one token for each row, as the reference does; write `state` and `out`.

    `state` is [slabs, H, V, K], K dense; `out` is [n, H, V], V dense. Raises WrongArgument.
    """
    update_call(state, inputs, plan.device_routes, plan.device_noise, out).run()


def gated_delta_prefill(state: torch.Tensor, inputs: DeltaInputs, plan: ChunkPlan, out: torch.Tensor) -> None:
    """Compute the pieces of the plan, as the reference does; write `state` and `out`.

    `state` is [slabs, H, V, K], K dense; `out` is [T, H, V], V dense. Raises WrongArgument.
    """
    prefill_call(state, inputs, plan, out).run()


def update_call(
    state: torch.Tensor, inputs: DeltaInputs, routes: torch.Tensor, noise: torch.Tensor, out: torch.Tensor
) -> KernelCall:
    """Return the launch; `routes` are [3, n] int32 and `noise` is [n] int32 of a `SlotPlan`."""
    n, H, G, V, K = check_rows(state, inputs, out)
    check("routes", routes, (3, n), dtypes=(torch.int32,), device=state.device)
    check("noise", noise, (n,), dtypes=(torch.int32,), device=state.device)
    width = block_of(K)
    launch = launch_for(
        "gated_delta_update",
        state.device,
        f"H{H} V{V} K{K} {state.dtype} n{block_of(n)}",
        Launch(num_warps=1, blocks={"V": block_of(V, most=max(1, 1024 // width))}),
    )
    rows = launch.blocks["V"]
    return KernelCall(
        _update,
        (ceil_div(V, rows) * H, n),
        {**delta_arguments(state, inputs, routes, out), "noise": noise},
        {
            "V": V,
            "K": K,
            "HEADS_PER_KEY": H // G,
            "BY_CHANNEL": inputs.by_channel,
            "BLOCK_V": rows,
            "BLOCK_K": width,
        },
        launch,
    )


def prefill_call(state: torch.Tensor, inputs: DeltaInputs, plan: ChunkPlan, out: torch.Tensor) -> KernelCall:
    """Return the launch: a program for each piece, value head and block of the head's V rows of state."""
    _, H, G, V, K = check_rows(state, inputs, out)
    check_plan("v", inputs.v, plan.tokens, plan.on_device.chunk_start.device)
    if inputs.by_channel:
        return channel_call(state, inputs, plan, out)
    width = block_of(K, least=MIN_TILE)
    # A float32 operand takes the registers of two while it is multiplied.
    wide = inputs.v.dtype == torch.float32
    launch = launch_for(
        "gated_delta_prefill",
        state.device,
        f"V{V} K{K} {inputs.v.dtype}",
        Launch(
            num_warps=4,
            num_stages=2,
            blocks={
                "V": MIN_TILE if wide else block_of(V, least=MIN_TILE, most=32),
                "T": MIN_TILE,
                "K": 32 if wide else width,
            },
        ),
    )
    chunks, routes = plan.on_device, plan.slots.device_routes
    return KernelCall(
        _prefill,
        (ceil_div(V, launch.blocks["V"]) * H, len(plan.slots.target_slots)),
        {
            **delta_arguments(state, inputs, routes, out),
            "piece_chunk": chunks.piece_chunk,
            "chunk_start": chunks.chunk_start,
            "chunk_track": chunks.chunk_track,
            "chunk_noise": chunks.chunk_noise,
        },
        {
            "V": V,
            "K": K,
            "HEADS_PER_KEY": H // G,
            "KIND": dot_dtype(inputs.v.dtype),
            "PRECISION": "tf32x3",
            "BLOCK_V": launch.blocks["V"],
            "BLOCK_K": min(width, launch.blocks["K"]),
            "BLOCK_T": launch.blocks["T"],
        },
        launch,
    )


def check_rows(state: torch.Tensor, inputs: DeltaInputs, out: torch.Tensor) -> tuple[int, int, int, int, int]:
    """Check the tensors and return rows, H, G, V and K. Raises WrongArgument, UnsupportedArgument."""
    sizes = check_delta(state, inputs, out, states=STATE_TYPES)
    if sizes[4] > MAX_KEY_DIM:
        raise UnsupportedArgument(f"state has keys of {sizes[4]}; the kernels take {MAX_KEY_DIM} at most")
    return sizes


@triton.jit
def with_token(s, key, value, a, b, rate, dt_bias, least, beta_scale, BY_CHANNEL: tl.constexpr):
    """Return the state `s`, [BLOCK_V, BLOCK_K], after one more token.

    `key` [BLOCK_K], `value` [BLOCK_V], `a` and `b` are of the input's type; `a` and `dt_bias` are scalars, or
    [BLOCK_K] if each channel of a key has a decay. `rate` is the head's rate of the decay, `least` the number
    added to the key's sum of squares.
    """
    decay = tl.exp2(softplus(a.to(tl.float32) + dt_bias) * rate * LOG2_E_CONSTANT)
    if BY_CHANNEL:
        decay = decay[None, :]
    beta = tl.sigmoid(b.to(tl.float32)) * beta_scale
    key = key.to(tl.float32)
    key *= tl.rsqrt(tl.sum(key * key, 0) + least)
    s = s * decay
    error = (value.to(tl.float32) - tl.sum(s * key[None, :], 1)) * beta
    return s + error[:, None] * key[None, :]


@triton.jit(do_not_specialize=["route"], do_not_specialize_on_alignment=["routes", "noise"])
def _update(
    state, state_slab, state_head, state_row, q, q_row, q_head, k, k_row, k_head, v, v_row, v_head,
    a, a_row, b, b_row, A, dt_bias, routes, route, out, out_row, out_head, least, scale, beta_scale,
    noise,
    V: tl.constexpr, K: tl.constexpr, HEADS_PER_KEY: tl.constexpr, BY_CHANNEL: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Grid (heads x blocks of BLOCK_V rows of a state, rows of the batch): add one token to each state.

    Writes the new state to its slot and to the slot of its checkpoint, and the token's result to `out`.
    """
    blocks: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    head = tl.program_id(0) // blocks
    of_key = head // HEADS_PER_KEY
    row = tl.program_id(1).to(tl.int64)
    source = tl.load(routes + row).to(tl.int64)
    target = tl.load(routes + route + row).to(tl.int64)
    track = tl.load(routes + 2 * route + row).to(tl.int64)
    i = (tl.program_id(0) % blocks) * BLOCK_V + tl.arange(0, BLOCK_V)
    j = tl.arange(0, BLOCK_K)
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

    # One decay of a head, or one of each channel: places of both kinds have one form.
    decays = j if BY_CHANNEL else 0
    of_decay = columns if BY_CHANNEL else True
    per_head: tl.constexpr = K if BY_CHANNEL else 1
    rate = tl.load(A + head).to(tl.float32)
    bias = tl.load(dt_bias + head * per_head + decays, mask=of_decay, other=0.0).to(tl.float32)
    own_a = tl.load(a + row * a_row + head * per_head + decays, mask=of_decay, other=0.0)
    own_b = tl.load(b + row * b_row + head)
    key = tl.load(k + row * k_row + of_key * k_head + j, mask=columns, other=0.0)
    value = tl.load(v + row * v_row + head * v_head + i, mask=rows, other=0.0)
    query = tl.load(q + row * q_row + of_key * q_head + j, mask=columns, other=0.0).to(tl.float32)
    query *= tl.rsqrt(tl.sum(query * query, 0) + least) * scale
    s = with_token(s, key, value, own_a, own_b, rate, bias, least, beta_scale, BY_CHANNEL)
    y = tl.sum(s * query[None, :], 1)
    tl.store(out + row * out_row + head * out_head + i, y.to(out.dtype.element_ty), mask=rows)

    stored = as_stored(s, state, head, i, j, noise + row, V, K)
    tl.store(state + target * state_slab + offsets, stored, mask=target_mask, eviction_policy="evict_first")
    # The same registers: state and checkpoint cannot disagree.
    tl.store(state + track * state_slab + offsets, stored, mask=track_mask, eviction_policy="evict_first")


@triton.jit
def _inverse(system, BLOCK: tl.constexpr):
    """Compute the inverse of I + `system` row by row, without cancellation.

    `system` is strictly lower triangular.
    """
    i = tl.arange(0, BLOCK)
    out = -system
    for row in tl.static_range(1, BLOCK):
        inverse_row = tl.sum(tl.where(i[:, None] == row, out, 0.0), 0)
        # Row `row` of the inverse is its own row minus the combination of the rows before it.
        inverse_row += tl.sum(inverse_row[:, None] * out, 0)
        out = tl.where(i[:, None] == row, inverse_row[None, :], out)
    return out + tl.where(i[:, None] == i[None, :], 1.0, 0.0)


@triton.jit(
    do_not_specialize=["route"],
    do_not_specialize_on_alignment=["routes", "piece_chunk", "chunk_start", "chunk_track", "chunk_noise"],
)
def _prefill(
    state, state_slab, state_head, state_row, q, q_row, q_head, k, k_row, k_head, v, v_row, v_head,
    a, a_row, b, b_row, A, dt_bias, routes, route, out, out_row, out_head, least, scale,
    beta_scale, piece_chunk, chunk_start, chunk_track, chunk_noise,
    V: tl.constexpr, K: tl.constexpr, HEADS_PER_KEY: tl.constexpr, KIND: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """Grid (heads x blocks of BLOCK_V rows of a state, pieces): add each piece of a prompt to its state.

    Products take BLOCK_K columns of keys at once.
    """
    blocks: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    parts: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    head = tl.program_id(0) // blocks
    of_key = head // HEADS_PER_KEY
    piece = tl.program_id(1)
    source = tl.load(routes + piece).to(tl.int64)
    target = tl.load(routes + route + piece).to(tl.int64)
    i = (tl.program_id(0) % blocks) * BLOCK_V + tl.arange(0, BLOCK_V)
    j = tl.arange(0, BLOCK_K)
    m = tl.arange(0, BLOCK_T)
    rows = i < V
    first_at = state + source * state_slab + head * state_head + i[:, None] * state_row
    states = ()
    for part in tl.static_range(parts):
        columns = part * BLOCK_K + j
        # Nothing is read for a fresh state: the padding slot may hold NaN.
        source_mask = rows[:, None] & (columns < extent_at(source, K))[None, :]
        states = states + (tl.load(first_at + columns[None, :], mask=source_mask, other=0.0).to(tl.float32),)
    bias = tl.load(dt_bias + head).to(tl.float32)
    rate = tl.load(A + head).to(tl.float32) * LOG2_E_CONSTANT
    for chunk in range(tl.load(piece_chunk + piece), tl.load(piece_chunk + piece + 1)):
        stop = tl.load(chunk_start + chunk + 1)
        for first in range(tl.load(chunk_start + chunk), stop, BLOCK_T):
            inside = first + m < stop
            t = (first + m).to(tl.int64)
            step = softplus(tl.load(a + t * a_row + head, mask=inside, other=0.0).to(tl.float32) + bias)
            # Beyond the end of the chunk nothing decays and nothing is written.
            log = tl.cumsum(tl.where(inside, step * rate, 0.0), 0)
            total = tl.min(log, 0)
            beta = tl.sigmoid(tl.load(b + t * b_row + head, mask=inside, other=0.0).to(tl.float32))
            beta = tl.where(inside, beta * beta_scale, 0.0)

            k_at = k + t[:, None] * k_row + of_key * k_head + j[None, :]
            q_at = q + t[:, None] * q_row + of_key * q_head + j[None, :]
            keys, queries = (), ()
            key_length, query_length = tl.zeros([BLOCK_T], tl.float32), tl.zeros([BLOCK_T], tl.float32)
            for part in tl.static_range(parts):
                key_mask = inside[:, None] & (part * BLOCK_K + j < K)[None, :]
                key = tl.load(k_at + part * BLOCK_K, mask=key_mask, other=0.0).to(tl.float32)
                query = tl.load(q_at + part * BLOCK_K, mask=key_mask, other=0.0).to(tl.float32)
                key_length += tl.sum(key * key, 1)
                query_length += tl.sum(query * query, 1)
                keys, queries = keys + (key,), queries + (query,)
            key_scale = tl.rsqrt(key_length + least)[:, None]
            query_scale = (tl.rsqrt(query_length + least) * scale)[:, None]
            of_value = inside[:, None] & rows[None, :]
            values = tl.load(v + t[:, None] * v_row + head * v_head + i[None, :], mask=of_value, other=0.0)
            values = values.to(tl.float32)

            system = tl.zeros([BLOCK_T, BLOCK_T], tl.float32)
            products = tl.zeros([BLOCK_T, BLOCK_T], tl.float32)
            prediction = tl.zeros([BLOCK_T, BLOCK_V], tl.float32)
            y = tl.zeros([BLOCK_T, BLOCK_V], tl.float32)
            normed = ()
            for part in tl.static_range(parts):
                narrow_key = (keys[part] * key_scale).to(KIND)
                narrow_query = (queries[part] * query_scale).to(KIND)
                transposed = tl.trans(states[part]).to(KIND)
                system = tl.dot(narrow_key, tl.trans(narrow_key), system, input_precision=PRECISION)
                prediction = tl.dot(narrow_key, transposed, prediction, input_precision=PRECISION)
                products = tl.dot(narrow_query, tl.trans(narrow_key), products, input_precision=PRECISION)
                y = tl.dot(narrow_query, transposed, y, input_precision=PRECISION)
                normed = normed + (narrow_key,)
                if tl.float32 == KIND:
                    # Otherwise the operands of all parts are loaded before the first one is multiplied.
                    tl.debug_barrier()
            # Differences are taken and masked before the exponential: no factor ever overflows.
            log_decay = tl.where(m[:, None] >= m[None, :], log[:, None] - log[None, :], float("-inf"))
            decay = tl.exp2(log_decay)
            system = tl.where(m[:, None] > m[None, :], system * decay * beta[:, None], 0.0)
            from_state = tl.exp2(log)[:, None]
            right_side = (values - prediction * from_state) * beta[:, None]
            updates = tl.dot(_inverse(system, BLOCK_T), right_side, input_precision=PRECISION)
            y *= from_state
            y = tl.dot((products * decay).to(KIND), updates.to(KIND), y, input_precision=PRECISION)
            pointers = out + t[:, None] * out_row + head * out_head + i[None, :]
            tl.store(pointers, y.to(out.dtype.element_ty), mask=of_value)
            weighted = tl.trans((updates * tl.exp2(total - log)[:, None]).to(KIND))
            following = ()
            for part in tl.static_range(parts):
                decayed = states[part] * tl.exp2(total)
                following = following + (tl.dot(weighted, normed[part], decayed, input_precision=PRECISION),)
            states = following
        track = tl.load(chunk_track + chunk).to(tl.int64)
        if track >= 0:
            # Equal to `head`. A compiler that knew this would keep places and noise of all elements in
            # registers.
            head_of_store = tl.where(chunk >= 0, head, 0)
            checkpoint = state + track * state_slab + head_of_store * state_head + i[:, None] * state_row
            for part in tl.static_range(parts):
                columns = part * BLOCK_K + j
                rounded = as_stored(states[part], state, head_of_store, i, columns, chunk_noise + chunk, V, K)
                tl.store(checkpoint + columns[None, :], rounded, mask=rows[:, None] & (columns < K)[None, :])
    last = tl.load(piece_chunk + piece + 1) - 1
    head_of_store = tl.where(last >= 0, head, 0)
    final = state + target * state_slab + head_of_store * state_head + i[:, None] * state_row
    for part in tl.static_range(parts):
        columns = part * BLOCK_K + j
        rounded = as_stored(states[part], state, head_of_store, i, columns, chunk_noise + last, V, K)
        tl.store(final + columns[None, :], rounded, mask=rows[:, None] & (columns < K)[None, :])


def channel_call(state: torch.Tensor, inputs: DeltaInputs, plan: ChunkPlan, out: torch.Tensor) -> KernelCall:
    """Return the launch for a decay of each channel: a program as in `prefill_call`, token by token."""
    _, H, G, V, K = check_rows(state, inputs, out)
    width = block_of(K)
    launch = launch_for(
        "channel_delta_prefill",
        state.device,
        f"V{V} K{K} {inputs.v.dtype}",
        Launch(num_warps=1, blocks={"V": block_of(V, most=max(1, 1024 // width))}),
    )
    rows, chunks = launch.blocks["V"], plan.on_device
    return KernelCall(
        _prefill_by_channel,
        (ceil_div(V, rows) * H, len(plan.slots.target_slots)),
        {
            **delta_arguments(state, inputs, plan.slots.device_routes, out),
            "piece_chunk": chunks.piece_chunk,
            "chunk_start": chunks.chunk_start,
            "chunk_track": chunks.chunk_track,
            "chunk_noise": chunks.chunk_noise,
        },
        {"V": V, "K": K, "HEADS_PER_KEY": H // G, "BLOCK_V": rows, "BLOCK_K": width},
        launch,
    )


@triton.jit(
    do_not_specialize=["route"],
    do_not_specialize_on_alignment=["routes", "piece_chunk", "chunk_start", "chunk_track", "chunk_noise"],
)
def _prefill_by_channel(
    state, state_slab, state_head, state_row, q, q_row, q_head, k, k_row, k_head, v, v_row, v_head,
    a, a_row, b, b_row, A, dt_bias, routes, route, out, out_row, out_head, least, scale,
    beta_scale, piece_chunk, chunk_start, chunk_track, chunk_noise,
    V: tl.constexpr, K: tl.constexpr, HEADS_PER_KEY: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Grid (heads x blocks of BLOCK_V rows of a state, pieces): add each piece's tokens one after another."""
    blocks: tl.constexpr = (V + BLOCK_V - 1) // BLOCK_V
    head = tl.program_id(0) // blocks
    of_key = head // HEADS_PER_KEY
    piece = tl.program_id(1)
    source = tl.load(routes + piece).to(tl.int64)
    target = tl.load(routes + route + piece).to(tl.int64)
    i = (tl.program_id(0) % blocks) * BLOCK_V + tl.arange(0, BLOCK_V)
    j = tl.arange(0, BLOCK_K)
    rows, columns = i < V, j < K
    offsets = head * state_head + i[:, None] * state_row + j[None, :]
    # Nothing is read for a fresh state: the padding slot may hold NaN.
    source_mask = rows[:, None] & (j < extent_at(source, K))[None, :]
    s = tl.load(state + source * state_slab + offsets, mask=source_mask, other=0.0).to(tl.float32)
    rate = tl.load(A + head).to(tl.float32)
    bias = tl.load(dt_bias + head * K + j, mask=columns, other=0.0).to(tl.float32)
    last = tl.load(piece_chunk + piece + 1) - 1
    for chunk in range(tl.load(piece_chunk + piece), last + 1):
        begin = tl.load(chunk_start + chunk)
        t = begin.to(tl.int64)
        for _ in range(begin, tl.load(chunk_start + chunk + 1)):
            own_a = tl.load(a + t * a_row + head * K + j, mask=columns, other=0.0)
            own_b = tl.load(b + t * b_row + head)
            key = tl.load(k + t * k_row + of_key * k_head + j, mask=columns, other=0.0)
            value = tl.load(v + t * v_row + head * v_head + i, mask=rows, other=0.0)
            query = tl.load(q + t * q_row + of_key * q_head + j, mask=columns, other=0.0).to(tl.float32)
            query *= tl.rsqrt(tl.sum(query * query, 0) + least) * scale
            s = with_token(s, key, value, own_a, own_b, rate, bias, least, beta_scale, True)
            y = tl.sum(s * query[None, :], 1)
            tl.store(out + t * out_row + head * out_head + i, y.to(out.dtype.element_ty), mask=rows)
            t += 1
        track = tl.load(chunk_track + chunk).to(tl.int64)
        track_mask = rows[:, None] & (j < extent_at(track, K))[None, :]
        stored = as_stored(s, state, head, i, j, chunk_noise + chunk, V, K)
        tl.store(state + track * state_slab + offsets, stored, mask=track_mask)
    stored = as_stored(s, state, head, i, j, chunk_noise + last, V, K)
    target_mask = rows[:, None] & (j < extent_at(target, K))[None, :]
    tl.store(state + target * state_slab + offsets, stored, mask=target_mask)
