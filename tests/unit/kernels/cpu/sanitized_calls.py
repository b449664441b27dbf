"""Calls of every kernel on arrays of their exact size, run by test_sanitized under LD_PRELOAD.

Free of torch: the sanitizer would watch all of it. The last call reads beyond an array, which must be caught.
"""

import ctypes
import math
import os
import socket
import sys
import types
from itertools import product
from pathlib import Path

import numpy as np

KERNELS = Path(__file__).parents[4] / "kernels" / "mamba_kernels"
package = types.ModuleType("mamba_kernels")  # without its torch
package.__path__ = [str(KERNELS)]
sys.modules["mamba_kernels"] = package

from mamba_kernels.cpu.library import Library  # noqa: E402
from mamba_kernels.cpu.structures import (  # noqa: E402
    ATTENTION_BLOCK,
    BFLOAT16,
    DELTA_BLOCK,
    FLOAT16,
    FLOAT32,
    INT4,
    INT4_ZEROS,
    INT8,
    MAMBA_BLOCK,
    MLP_BLOCK,
    PARALLEL_BLOCK,
    SHORT_CONV_BLOCK,
    WHOLE,
    AdapterChanges,
    AdapterPart,
    CheckedBytes,
    DecodeBlock,
    DecodeStep,
    DeltaDecode,
    DeltaMixer,
    DeltaPrefill,
    DeltaRows,
    Experts,
    GatedDeltaPrefill,
    GatedDeltaUpdate,
    LinearLayer,
    MambaDecode,
    MambaPrefill,
    Mixer,
    PagedDecode,
    PagedExtend,
    RmsNorm,
    Rope,
    Router,
    ShortConvDecode,
    ShortConvMixer,
    ShortConvPrefill,
    SigmoidGate,
)

BYTE = 3
BYTES = {FLOAT32: 4, BFLOAT16: 2, FLOAT16: 2, BYTE: 1}
LIBC = ctypes.CDLL(None)  # the sanitizer's, which sees each block's end
LIBC.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
kept: list[np.ndarray] = []
mixers: list[Mixer | DeltaMixer | ShortConvMixer] = []
experts: list[ctypes.Array[LinearLayer]] = []


def array(*shape: int, kind: int = FLOAT32) -> int:
    """Return the address of zeros in a block of exactly their size, aligned as torch aligns."""
    size, out = math.prod(shape) * BYTES[kind], ctypes.c_void_p()
    assert LIBC.posix_memalign(ctypes.byref(out), ctypes.c_size_t(64), ctypes.c_size_t(size)) == 0
    LIBC.memset(out, 0, size)
    assert out.value is not None
    return out.value


def linear(library: Library) -> None:
    for kind, outputs, inputs, rows in product(
        (FLOAT32, BFLOAT16), (1, 63, 257), (1, 100, 801), (1, 6, 40, 43)
    ):
        pair = 2 if kind == BFLOAT16 else 1
        packed = array(-(-outputs // 16), -(-inputs // pair), 16, pair, kind=kind)
        eight, four, zeros = (
            array(-(-outputs // 16), -(-inputs // 32), size * 16 // 2, kind=BFLOAT16) for size in (34, 18, 19)
        )
        for packing, weights in ((WHOLE, packed), (INT8, eight), (INT4, four), (INT4_ZEROS, zeros)):
            added, activation = array(outputs, kind=kind), rows % 4
            layer = LinearLayer(weights, added, inputs, outputs, kind, packing, activation)
            if packing == INT4_ZEROS:  # each input is the first one of its row
                layer.order = array(inputs)
            x, out = array(rows, inputs, kind=kind), array(rows, outputs, kind=kind)
            library.linear(ctypes.addressof(layer), x, inputs, rows, out)


MIXERS = ((6, 5, 9, 2, 4), (1, 63, 100, 1, 2), (3, 7, 257, 3, 1))


def mixer(H: int, P: int, N: int, G: int, K: int, kind: int) -> int:
    """Return the address of a mixer."""
    C = H * P + 2 * G * N
    mixers.append(
        Mixer(
            conv_weight=array(K, C), conv_bias=array(C), rate=array(H), skip=array(H), step_bias=array(H),
            norm_weight=array(H * P, kind=kind), step_min=0.0, step_max=9.0, norm_eps=1e-5, heads=H,
            head_dim=P, groups=G, state_size=N, taps=K, norm_groups=G,
        )
    )  # fmt: skip
    return ctypes.addressof(mixers[-1])


def caches(rows: int, H: int, P: int, N: int, G: int, K: int, kind: int, state: int) -> dict[str, int]:
    """Return rows and five slots, as fields of a call."""
    C, inner = H * P + 2 * G * N, H * P
    return {
        "projected": array(rows, inner + C + H, kind=kind), "projected_stride": inner + C + H,
        "window": array(5, K - 1, C, kind=kind), "window_stride": (K - 1) * C,
        "state": array(5, H, P, N, kind=state), "state_stride": H * P * N,
        "out": array(rows, inner, kind=kind), "kind": kind, "state_kind": state,
    }  # fmt: skip


def decode(library: Library) -> None:
    for kind, state, sizes in product((FLOAT32, BFLOAT16), (FLOAT32, FLOAT16), MIXERS):
        routes = np.array([[1, -1, 3], [1, 2, 0], [-1, 4, -1]], np.int64)
        kept.append(routes)
        row = routes.strides[0]
        call = MambaDecode(
            mixer=mixer(*sizes, kind), source=routes.ctypes.data, target=routes.ctypes.data + row,
            track=routes.ctypes.data + 2 * row, noise=array(3), rows=3, **caches(3, *sizes, kind, state),
        )  # fmt: skip
        library.mamba_decode(ctypes.addressof(call))


def prefill(library: Library) -> None:
    for kind, state, sizes, chunk in product((FLOAT32, BFLOAT16), (FLOAT32, FLOAT16), MIXERS, (5, 17)):
        slots = np.array([[1, -1, 3], [1, 2, 0]], np.int64)
        pieces = np.array([0, 1, 7, 8], np.int32)
        lengths = [1, *[chunk] * 5, 1, 2]
        start = np.array([sum(lengths[:each]) for each in range(9)], np.int32)
        track = np.array([-1, -1, 4, -1, -1, -1, -1, -1], np.int32)
        kept.extend((slots, pieces, start, track))
        call = MambaPrefill(
            mixer=mixer(*sizes, kind), source=slots.ctypes.data, target=slots.ctypes.data + slots.strides[0],
            piece_chunk=pieces.ctypes.data, chunk_start=start.ctypes.data, chunk_track=track.ctypes.data,
            chunk_noise=array(8), pieces=3, **caches(int(start[-1]), *sizes, kind, state),
        )  # fmt: skip
        library.mamba_prefill(ctypes.addressof(call))


DELTAS = ((3, 3, 1, 1), (4, 2, 5, 63), (2, 1, 100, 17))
DELTA_TYPES = tuple(product((FLOAT32, BFLOAT16), (FLOAT32, BFLOAT16, FLOAT16), DELTAS))


def delta(rows: int, H: int, G: int, V: int, K: int, kind: int, state: int) -> DeltaRows:
    """Return dense rows and five slots."""
    return DeltaRows(
        q=array(rows, G, K, kind=kind), q_row=G * K, q_head=K, k=array(rows, G, K, kind=kind), k_row=G * K,
        k_head=K, v=array(rows, H, V, kind=kind), v_row=H * V, v_head=V, a=array(rows, H, kind=kind), a_row=H,
        b=array(rows, H, kind=kind), b_row=H, rate=array(H), step_bias=array(H),
        state=array(5, H, V, K, kind=state), state_slab=H * V * K, state_head=V * K, state_row=K,
        out=array(rows, H, V, kind=kind), out_row=H * V, out_head=V, least_square=1e-6, scale=1.0, heads=H,
        key_heads=G, value_dim=V, key_dim=K, kind=kind, state_kind=state,
    )  # fmt: skip


def delta_update(library: Library) -> None:
    for kind, state, sizes in DELTA_TYPES:
        routes = np.array([[1, -1, 3, -1], [1, 2, 0, -1], [-1, 4, -1, -1]], np.int64)
        kept.append(routes)
        row = routes.strides[0]
        call = GatedDeltaUpdate(
            delta=delta(4, *sizes, kind, state), source=routes.ctypes.data, target=routes.ctypes.data + row,
            track=routes.ctypes.data + 2 * row, noise=array(4), rows=4,
        )  # fmt: skip
        library.gated_delta_update(ctypes.addressof(call))


def delta_prefill(library: Library) -> None:
    for (kind, state, sizes), chunk in product(DELTA_TYPES, (5, 70)):
        routes = np.array([[1, -1, 3], [1, 2, -1]], np.int64)
        pieces = np.array([0, 1, 3, 4], np.int32)
        start = np.cumsum([0, 1, chunk, chunk, 2], dtype=np.int32)
        track = np.array([-1, 4, -1, -1], np.int32)
        kept.extend((routes, pieces, start, track))
        call = GatedDeltaPrefill(
            delta=delta(int(start[-1]), *sizes, kind, state), source=routes.ctypes.data,
            target=routes.ctypes.data + routes.strides[0], piece_chunk=pieces.ctypes.data,
            chunk_start=start.ctypes.data, chunk_track=track.ctypes.data, chunk_noise=array(4), pieces=3,
        )  # fmt: skip
        library.gated_delta_prefill(ctypes.addressof(call))


def delta_mixer(rows: int, H: int, G: int, V: int, K: int, kind: int, state: int) -> dict[str, int]:
    """Return the fields of a call: a mixer of three taps with dense rows and five slots."""
    C, inner = 2 * G * K + H * V, H * V
    mixers.append(
        DeltaMixer(
            conv_weight=array(3, C), rate=array(H), step_bias=array(H), norm_weight=array(V), norm_eps=1e-5,
            least_square=1e-6, scale=1.0, heads=H, key_heads=G, value_dim=V, key_dim=K, taps=3,
        )
    )  # fmt: skip
    projected = C + inner + 2 * H
    return {
        "mixer": ctypes.addressof(mixers[-1]), "projected": array(rows, projected, kind=kind),
        "projected_stride": projected, "window": array(5, 2, C, kind=kind), "window_stride": 2 * C,
        "state": array(5, H, V, K, kind=state), "state_stride": H * V * K,
        "out": array(rows, inner, kind=kind), "kind": kind, "state_kind": state,
    }  # fmt: skip


def short_conv(rows: int, channels: int, kind: int) -> dict[str, int]:
    """Return the fields of a call: a convolution of three taps with dense rows and five slots."""
    mixers.append(
        ShortConvMixer(conv_weight=array(3, channels), conv_bias=array(channels), channels=channels, taps=3)
    )
    return {
        "mixer": ctypes.addressof(mixers[-1]), "projected": array(rows, 3 * channels, kind=kind),
        "projected_stride": 3 * channels, "window": array(5, 2, channels, kind=kind),
        "window_stride": 2 * channels, "out": array(rows, channels, kind=kind), "kind": kind,
    }  # fmt: skip


def short_conv_decode(library: Library) -> None:
    for kind, channels in product((FLOAT32, BFLOAT16), (1, 16, 33)):
        routes = np.array([[1, -1, 3], [1, 2, 0], [-1, 4, -1]], np.int64)
        kept.append(routes)
        row = routes.strides[0]
        call = ShortConvDecode(
            source=routes.ctypes.data, target=routes.ctypes.data + row, track=routes.ctypes.data + 2 * row,
            rows=3, **short_conv(3, channels, kind),
        )  # fmt: skip
        library.short_conv_decode(ctypes.addressof(call))


def short_conv_prefill(library: Library) -> None:
    for (kind, channels), chunk in product(product((FLOAT32, BFLOAT16), (1, 16, 33)), (5, 70)):
        routes = np.array([[1, -1, 3], [1, 2, 0]], np.int64)
        pieces = np.array([0, 1, 3, 4], np.int32)
        start = np.cumsum([0, 1, chunk, chunk, 2], dtype=np.int32)
        track = np.array([-1, 4, -1, -1], np.int32)
        kept.extend((routes, pieces, start, track))
        call = ShortConvPrefill(
            source=routes.ctypes.data, target=routes.ctypes.data + routes.strides[0],
            piece_chunk=pieces.ctypes.data, chunk_start=start.ctypes.data, chunk_track=track.ctypes.data,
            pieces=3, **short_conv(int(start[-1]), channels, kind),
        )  # fmt: skip
        library.short_conv_prefill(ctypes.addressof(call))


def delta_mixer_decode(library: Library) -> None:
    for kind, state, sizes in DELTA_TYPES:
        routes = np.array([[1, -1, 3], [1, 2, 0], [-1, 4, -1]], np.int64)
        kept.append(routes)
        row = routes.strides[0]
        call = DeltaDecode(
            source=routes.ctypes.data, target=routes.ctypes.data + row, track=routes.ctypes.data + 2 * row,
            noise=array(3), rows=3, **delta_mixer(3, *sizes, kind, state),
        )  # fmt: skip
        library.delta_decode(ctypes.addressof(call))


def delta_mixer_prefill(library: Library) -> None:
    for (kind, state, sizes), chunk in product(DELTA_TYPES, (5, 70)):
        routes = np.array([[1, -1, 3], [1, 2, 0]], np.int64)
        pieces = np.array([0, 1, 3, 4], np.int32)
        start = np.cumsum([0, 1, chunk, chunk, 2], dtype=np.int32)
        track = np.array([-1, 4, -1, -1], np.int32)
        kept.extend((routes, pieces, start, track))
        call = DeltaPrefill(
            source=routes.ctypes.data, target=routes.ctypes.data + routes.strides[0],
            piece_chunk=pieces.ctypes.data, chunk_start=start.ctypes.data, chunk_track=track.ctypes.data,
            chunk_noise=array(4), pieces=3, **delta_mixer(int(start[-1]), *sizes, kind, state),
        )  # fmt: skip
        library.delta_prefill(ctypes.addressof(call))


def gate(library: Library) -> None:
    for kind, width in product((FLOAT32, BFLOAT16), (1, 63, 257)):
        rows = array(70, width, kind=kind)
        call = SigmoidGate(rows, array(70, width, kind=kind), width, 70, width, kind)
        library.gate(ctypes.addressof(call))


def change(library: Library) -> None:
    places = np.array([1, -1, 0], np.int32)
    ranks = np.array([5, 2], np.int32)
    kept.extend((places, ranks))
    for kind, inputs, activation in product((FLOAT32, BFLOAT16), (1, 63, 257), (0, 3)):
        widths = (33, 1)
        parts = (AdapterPart * 2)()
        for part, start, width in zip(parts, (0, 33), widths, strict=True):
            part.second, part.start, part.width = array(2, 5, width, kind=kind), start, width
        call = AdapterChanges(
            None, array(2, 2, 5, inputs, kind=kind), ctypes.addressof(parts), ranks.ctypes.data, inputs,
            sum(widths), 2, 5, kind,
        )  # fmt: skip
        library.change_rows(
            ctypes.addressof(call), places.ctypes.data, array(3, inputs, kind=kind), inputs, 3,
            array(3, sum(widths), kind=kind), activation,
        )  # fmt: skip


def norm(library: Library) -> None:
    kinds = ((FLOAT32, FLOAT32), (FLOAT32, BFLOAT16), (BFLOAT16, BFLOAT16))
    for (x_kind, kind), wide_weight, width in product(kinds, (False, True), (1, 63, 257)):
        weight_kind = FLOAT32 if wide_weight else kind
        call = RmsNorm(
            array(70, width, kind=x_kind), width, array(70, width, kind=kind),
            array(width, kind=weight_kind), array(70, width, kind=kind), 70, width, 1e-5, x_kind, kind,
            weight_kind,
        )  # fmt: skip
        library.rms_norm(ctypes.addressof(call))


def choose(library: Library) -> None:
    for (experts, groups, kept), sigmoid in product(((1, 1, 1), (24, 4, 2), (24, 24, 7)), (0, 1)):
        top_k = min(5, experts)
        call = Router(
            linear=None, correction=array(experts), experts=experts, top_k=top_k, groups=groups,
            kept_groups=kept, sigmoid=sigmoid, renormalise=sigmoid, scale=1.0,
        )  # fmt: skip
        library.route(ctypes.addressof(call), array(7, experts), 7, array(7, top_k), array(7, top_k))


def turn(library: Library) -> None:
    for kind, half in product((FLOAT32, BFLOAT16), (1, 17, 20)):
        call = Rope(
            array(70, 3, 40, kind=kind), 120, array(70, half), array(70, half), 70, 3, 40, half, kind
        )  # fmt: skip
        library.rope(ctypes.addressof(call))


def attend(library: Library) -> None:
    for kind, (heads, kv_heads, head_dim), page_size in product(
        (FLOAT32, BFLOAT16), ((6, 2, 63), (3, 1, 100), (2, 2, 16), (4, 2, 64), (2, 1, 128)), (1, 5)
    ):
        contexts = np.array([1, 17, 70], np.int32)
        widest = -(-70 // page_size)
        table = np.arange(3 * widest, dtype=np.int32).reshape(3, widest)
        rows = np.array([2, 0, 1], np.int32)
        kept.extend((contexts, table, rows))
        inside = page_size * kv_heads * head_dim
        call = PagedDecode(
            query=array(3, heads, head_dim, kind=kind), query_stride=heads * head_dim,
            kv=array(table.size, 2, inside, kind=kind), page_stride=2 * inside, value_offset=inside,
            page_table=table.ctypes.data, page_table_stride=widest, table_row=rows.ctypes.data,
            context_len=contexts.ctypes.data,
            out=array(3, heads, head_dim, kind=kind), scale=0.3, rows=3, heads=heads, kv_heads=kv_heads,
            head_dim=head_dim, page_size=page_size, kind=kind,
        )  # fmt: skip
        library.paged_decode(ctypes.addressof(call))


def extend(library: Library) -> None:
    for kind, (heads, kv_heads, head_dim), page_size in product(
        (FLOAT32, BFLOAT16), ((6, 2, 63), (3, 1, 100), (2, 2, 16), (65, 1, 3)), (1, 5)
    ):
        contexts, start = np.array([1, 17, 70], np.int32), np.array([4, 5, 22, 24], np.int32)
        widest = -(-70 // page_size)
        table = np.arange(3 * widest, dtype=np.int32).reshape(3, widest)
        rows = np.array([2, 0, 1], np.int32)
        kept.extend((contexts, start, table, rows))
        inside = page_size * kv_heads * head_dim
        call = PagedExtend(
            query=array(20, heads, head_dim, kind=kind), query_stride=heads * head_dim,
            kv=array(table.size, 2, inside, kind=kind), page_stride=2 * inside, value_offset=inside,
            page_table=table.ctypes.data, page_table_stride=widest, table_row=rows.ctypes.data,
            context_len=contexts.ctypes.data,
            piece_start=start.ctypes.data, out=array(20, heads, head_dim, kind=kind), scale=0.3, pieces=3,
            heads=heads, kv_heads=kv_heads, head_dim=head_dim, page_size=page_size, kind=kind,
        )  # fmt: skip
        library.paged_extend(ctypes.addressof(call))


def layers(count: int, outputs: int, inputs: int, kind: int) -> int:
    """Return the address of `count` layers of `Experts`."""
    pair = 2 if kind == BFLOAT16 else 1
    each = (-(-outputs // 16), -(-inputs // pair), 16, pair)
    made = (LinearLayer * count)(
        *(LinearLayer(array(*each, kind=kind), None, inputs, outputs, kind, WHOLE, 0) for _ in range(count))
    )
    experts.append(made)
    return ctypes.addressof(made)


def mixture(library: Library) -> None:
    for kind, (d, f), gated, top_k in product(
        (FLOAT32, BFLOAT16), ((1, 3), (63, 17), (100, 40)), (0, 1), (1, 3)
    ):
        rows, count, wide = 20, 4, 1 + gated
        chosen = ctypes.cast(array(rows, top_k), ctypes.POINTER(ctypes.c_int32))
        for pair in range(rows * top_k):
            chosen[pair] = (pair * 7) % 5 - 1  # -1 is nobody
        call = Experts(
            gate_up=layers(count, wide * f, d, kind), down=layers(count, d, f, kind),
            shared_gate_up=layers(1, wide * (f + 2), d, kind), shared_down=layers(1, d, f + 2, kind),
            hidden=array(rows, d, kind=kind), hidden_stride=d, chosen=ctypes.addressof(chosen.contents),
            weights=array(rows, top_k), shared_gate=array(d) if gated else None,
            out=array(rows, d, kind=kind), rows=rows, top_k=top_k, experts=count, gated=gated, kind=kind,
        )  # fmt: skip
        library.moe(ctypes.addressof(call))


def step(library: Library) -> None:
    heads, kv_heads, head_dim, page_size, width = 6, 2, 9, 5, 37
    queries, keys, inside = heads * head_dim, kv_heads * head_dim, page_size * kv_heads * head_dim
    integers = np.array(
        [[1, -1, 3], [1, 2, 0], [-1, 4, -1], [7, 8, 9], [2, 0, 1], [1, 17, 70], [0, 11, 24]], np.int32
    )
    table, last_token = np.arange(3 * 14, dtype=np.int32), np.array([0, 49, 17], np.int32)
    kept.extend((integers, table, last_token))
    for (residual, kind), sizes, packing in product(
        ((FLOAT32, FLOAT32), (FLOAT32, BFLOAT16), (BFLOAT16, BFLOAT16)), MIXERS, (WHOLE, INT8, INT4)
    ):
        H, P, N, G, _ = sizes
        blocks = (DecodeBlock * 9)()
        for block in blocks:
            block.norm = RmsNorm(
                weight=array(width, kind=kind), width=width, eps=1e-5, kind=kind, weight_kind=kind
            )
        mamba, attention, mlp, gated, parallel, delta, normed, short, after = blocks
        mamba.kind, attention.kind, mlp.kind, gated.kind = MAMBA_BLOCK, ATTENTION_BLOCK, MLP_BLOCK, MLP_BLOCK
        cached = caches(1, *sizes, kind, FLOAT32)
        mamba.mamba = MambaDecode(mixer=mixer(*sizes, kind), **cached)
        attention.attention = PagedDecode(
            kv=array(table.size, 2, inside, kind=kind), page_stride=2 * inside, value_offset=inside,
            scale=0.3, heads=heads, kv_heads=kv_heads, head_dim=head_dim, page_size=page_size, kind=kind,
        )  # fmt: skip
        inner = {0: 2 * H * P + 2 * G * N + H, 1: queries + 2 * keys, 2: 21, 3: 40}
        for index, (block, outer) in enumerate(zip(blocks, (H * P, queries, 21, 40), strict=False)):
            into, out = layer(inner[index], width, kind, packing), layer(width, outer, kind, packing)
            if index == 1:
                block.attention_in_proj, block.attention_out_proj = into, out
            else:
                block.in_proj, block.out_proj = into, out
        ctypes.memmove(ctypes.addressof(parallel), ctypes.addressof(mamba), ctypes.sizeof(mamba))
        parallel.kind, parallel.attention = PARALLEL_BLOCK, attention.attention
        parallel.attention_in_proj = attention.attention_in_proj
        parallel.attention_out_proj = attention.attention_out_proj
        delta.kind, delta_sizes = DELTA_BLOCK, DELTAS[1]
        rule = delta_mixer(1, *delta_sizes, kind, FLOAT32)
        delta.delta = DeltaDecode(**rule)
        delta.in_proj = layer(rule["projected_stride"], width, kind, packing)
        delta.out_proj = layer(width, delta_sizes[0] * delta_sizes[2], kind, packing)
        # Attention whose queries and keys are normed, and which has a gate.
        ctypes.memmove(ctypes.addressof(normed), ctypes.addressof(attention), ctypes.sizeof(attention))
        normed.attention_in_proj = layer(2 * queries + 2 * keys, width, kind, packing)
        normed.output_gate = 1
        normed.query_norm = normed.key_norm = RmsNorm(
            weight=array(head_dim), width=head_dim, eps=1e-5, kind=kind, weight_kind=FLOAT32
        )
        gated.gate_proj = layer(40, width, kind, packing)
        short.kind, channels = SHORT_CONV_BLOCK, 17
        fields = short_conv(1, channels, kind)
        short.short_conv = ShortConvDecode(**fields)
        short.in_proj = layer(3 * channels, width, kind, packing)
        short.out_proj = layer(width, channels, kind, packing)
        ctypes.memmove(ctypes.addressof(after), ctypes.addressof(normed), ctypes.sizeof(normed))
        # Queries and keys have one norm each, and where the types allow it, so has the result.
        after.query_norm = RmsNorm(
            weight=array(queries), width=queries, eps=1e-5, kind=kind, weight_kind=FLOAT32
        )
        after.key_norm = RmsNorm(weight=array(keys), width=keys, eps=1e-5, kind=kind, weight_kind=FLOAT32)
        if residual == kind:
            after.result_norm = after.norm
            after.norm = RmsNorm()
        call = DecodeStep(
            blocks=ctypes.addressof(blocks), embedding=layer(50, width, kind, packing),
            norm=RmsNorm(
                weight=array(width, kind=kind), width=width, eps=1e-5, x_kind=residual, kind=kind,
                weight_kind=kind,
            ),
            last_token=last_token.ctypes.data, integers=integers.ctypes.data, integers_stride=3,
            page_table=table.ctypes.data, page_table_stride=14, cos=array(3, 2),
            sin=array(3, 2), embedding_scale=0.5, rope_half=2, block_count=9, rows=3,
        )  # fmt: skip
        library.decode_step(ctypes.addressof(call), array(3, width, kind=kind))


def layer(outputs: int, inputs: int, kind: int, packing: int) -> int:
    """Return the address of a product with packed weights."""
    if packing == WHOLE:
        return layers(1, outputs, inputs, kind)
    size = 34 if packing == INT8 else 18
    blocks = array(-(-outputs // 16), -(-inputs // 32), size * 16 // 2, kind=BFLOAT16)
    experts.append((LinearLayer * 1)(LinearLayer(blocks, None, inputs, outputs, kind, packing, 0)))
    return ctypes.addressof(experts[-1])


def largest(library: Library) -> None:
    for kind, columns in product((FLOAT32, BFLOAT16), (1, 17, 16_391)):
        library.largest(array(3, columns, kind=kind), 3, columns, kind, array(3, 2), array(3, 1, kind=BYTE))


def passing(library: Library) -> None:
    for sizes in ((241,), (1025, 256, 300)):
        near, far = socket.socketpair()
        count = sum(sizes)
        for end, sends in ((near, 1), (far, 0)):
            memory, digests = array(count, kind=BYTE), array(len(sizes), 2)
            # The second piece begins and ends within a stripe.
            rows = [np.array(row, np.int64) for row in ((memory, memory + 7), (7, count - 7), sizes)]
            addresses, lengths, blocks = (row.ctypes.data for row in rows)
            call = CheckedBytes(addresses, lengths, blocks, digests, len(sizes), sends, 1)
            moving = library.begin_checked_bytes(ctypes.addressof(call))
            assert moving is not None
            assert library.move_checked_bytes(moving, end.fileno()) == count
            library.end_checked_bytes(moving)
            end.close()


def caught(library: Library) -> None:
    """Call a norm with four more numbers than there are, in a child that the sanitizer ends."""
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        call = RmsNorm(array(100), 104, None, array(104), array(104), 1, 104, 1e-5, FLOAT32, FLOAT32, FLOAT32)
        library.rms_norm(ctypes.addressof(call))
        os._exit(0)
    assert os.waitpid(child, 0)[1] != 0, "the sanitizer does not see what it should"


library = Library(Path(sys.argv[1]), sys.argv[2])
library.set_threads(2)
for check in (
    linear, decode, prefill, delta_update, delta_prefill, delta_mixer_decode, delta_mixer_prefill,
    short_conv_decode, short_conv_prefill, norm, gate, change, choose, turn, attend, extend, mixture, step,
    largest, passing, caught,
):  # fmt: skip
    check(library)
    sys.stdout.write(check.__name__ + "\n")
