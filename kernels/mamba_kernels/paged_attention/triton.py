# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# Tuples grow while a kernel is compiled, and Triton's compiler does not support unpacking.
# mypy: disable-error-code="assignment"
# ruff: noqa: RUF005
"""Paged attention on a GPU: decodes split over their contexts and combined, pieces by blocks of queries.

The splits of a context follow from its own length alone, so a row's bits do not depend on its neighbours, and
the grid of a decode does not depend on the contexts. Sums are kept in float32; scores are logarithms to base
2.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from mamba_kernels.fp8_pages import Fp8Pages, Pages
from mamba_kernels.kv_write.triton import scale_strides, stored_parts
from mamba_kernels.paged_attention.plan import AttentionPlan
from mamba_kernels.triton_support import (
    LOG2_E,
    KernelCall,
    Launch,
    UnsupportedArgument,
    WrongArgument,
    block_of,
    ceil_div,
    check,
    check_plan,
    dot_dtype,
    launch_for,
    stride_unit,
    warp_groups,
)

LEAST_SPLIT = 256
"""Smallest number of positions of a split: combining shorter ones would cost as much as reading them."""
PROGRAMS = 128
"""Largest number of programs for one decode: about as many as a GPU runs."""
TOGETHER = 4096
"""Elements of splits that a program of two warps combines at once."""
MOST_HEAD_DIM = 576
"""Largest size of a head: a latent row of Kimi-Linear, which is a key of 576 and a value of 512."""
WIDE_HEAD = 256
"""Largest size of a head of float32, whose operands are larger, and of one with the tiles of small heads."""
MOST_GROUP = 64
"""Largest number of query heads of one KV head."""


@triton.jit
def _widened(stored, scale, FP8: tl.constexpr, DOT: tl.constexpr):
    """Return rows as numbers of the type DOT, which holds those of FP8 without a rounding."""
    if FP8:
        # The bits of e4m3 are those of a float16 of another bias, 2^8 times smaller, as scales expect it.
        bits = stored.to(tl.uint16)
        half = (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True)
        wide = half.to(tl.float32) * scale[:, None]
        if tl.float16 == DOT:
            wide = tl.where(wide == wide, tl.minimum(tl.maximum(wide, -65504.0), 65504.0), wide)
        return wide.to(DOT)
    return stored.to(tl.float32).to(DOT)


@triton.jit
def _scales(scales, places, in_context, FP8: tl.constexpr):
    """Return the factors of rows at `places`; 1 where pages are not FP8."""
    if FP8:
        exponent = tl.load(scales + places, mask=in_context, other=0).to(tl.int32)
        return (exponent << 23).to(tl.float32, bitcast=True)
    return in_context.to(tl.float32)


@triton.jit
def _attend(
    query, kv, scales, table, first_row, first_position, queries, begin, end, kv_head, scale,
    query_row, query_head, kv_page, kv_value, kv_token, kv_head_stride,
    scale_page, scale_value, scale_token, scale_head,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
    PART: tl.constexpr, PAGE: tl.constexpr, DOT: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """Attend with query rows r = (query r // GROUP, head r % GROUP) to positions begin..end.

    Return the weighted sums of values in parts of PART columns, and for each row r its largest score and the
    sum of its weights. The first query is row `first_row` at position `first_position`.
    """
    parts: tl.constexpr = (WIDTH + PART - 1) // PART
    r = tl.arange(0, BLOCK_M)
    d = tl.arange(0, PART)
    # Rows beyond the last query repeat it: their results are never stored, and they stay finite.
    query_number = tl.minimum(r // GROUP, queries - 1)
    rows = (first_row + query_number).to(tl.int64) * query_row + (kv_head * GROUP + r % GROUP) * query_head
    position = first_position + query_number
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    weight = tl.zeros([BLOCK_M], tl.float32)
    query_parts = ()
    totals = ()
    for part in tl.static_range(parts):
        inside = part * PART + d < WIDTH
        q = tl.load(query + rows[:, None] + (part * PART + d)[None, :], mask=inside[None, :], other=0)
        query_parts = query_parts + (q.to(tl.float32).to(DOT),)
        totals = totals + (tl.zeros([BLOCK_M, PART], tl.float32),)
    for start in range(begin, end, BLOCK):
        n = start + tl.arange(0, BLOCK)
        in_context = n < end
        page = tl.load(table + n // PAGE, mask=in_context, other=0).to(tl.int64)
        offsets = page * kv_page + (n % PAGE) * kv_token + kv_head * kv_head_stride
        places = page * scale_page + (n % PAGE) * scale_token + kv_head * scale_head
        key_scale = _scales(scales, places, in_context, FP8)
        scores = tl.zeros([BLOCK_M, BLOCK], tl.float32)
        for part in tl.static_range(parts):
            mask = in_context[:, None] & (part * PART + d < WIDTH)[None, :]
            k = tl.load(kv + offsets[:, None] + (part * PART + d)[None, :], mask=mask, other=0)
            keys = _widened(k, key_scale, FP8, DOT)
            scores = tl.dot(query_parts[part], tl.trans(keys), scores, input_precision="tf32x3")
        seen = in_context[None, :] & (n[None, :] <= position[:, None])
        scores = tl.where(seen, scores * scale, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        shares = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(top - higher)
        weight = weight * shrink + tl.sum(shares, 1)
        top = higher
        narrow = shares.to(DOT)
        value_scale = _scales(scales, places + scale_value, in_context, FP8)
        following = ()
        for part in tl.static_range(parts):
            mask = in_context[:, None] & (part * PART + d < WIDTH)[None, :]
            column = kv_value + part * PART + d
            v = tl.load(kv + offsets[:, None] + column[None, :], mask=mask, other=0)
            values = _widened(v, value_scale, FP8, DOT)
            shrunk = totals[part] * shrink[:, None]
            following = following + (tl.dot(narrow, values, shrunk, input_precision="tf32x3"),)
        totals = following
    return totals, top, weight


@triton.jit
def _split_width(context, SPLITS: tl.constexpr, BLOCK: tl.constexpr, LEAST: tl.constexpr):
    """Return the positions per split of a context."""
    return tl.maximum((context + SPLITS * BLOCK - 1) // (SPLITS * BLOCK) * BLOCK, LEAST)


@triton.jit(do_not_specialize=["query_row", "query_head", "table_stride", "out_row", "out_head",
                               "kv_page", "kv_value", "kv_token", "kv_head_stride", "scale",
                               "scale_page", "scale_value", "scale_token", "scale_head"])  # fmt: skip
def decode_kernel(
    query, kv, scales, page_table, table_row, context_len, out, attended, logs, scale,
    query_row: tl.int64, query_head: tl.int64, table_stride: tl.int64, out_row: tl.int64, out_head: tl.int64,
    kv_page: tl.int64, kv_value: tl.int64, kv_token: tl.int64, kv_head_stride: tl.int64,
    scale_page: tl.int64, scale_value: tl.int64, scale_token: tl.int64, scale_head: tl.int64,
    HEADS: tl.constexpr, GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK: tl.constexpr,
    WIDTH: tl.constexpr, PART: tl.constexpr, PAGE: tl.constexpr, SPLITS: tl.constexpr,
    LEAST: tl.constexpr, QUERY_UNIT: tl.constexpr, KV_UNIT: tl.constexpr, DOT: tl.constexpr,
    FP8: tl.constexpr,
):  # fmt: skip
    """Grid (kv_heads, rows, SPLITS): attend from the query of a row to one of SPLITS parts of its context.

    With one split the result goes to `out`; with several, `combine_kernel` adds what this kernel leaves in
    `attended` and `logs`. A row without context becomes zero. Strides are in units of QUERY_UNIT or KV_UNIT
    elements, so that the compiler knows a common divisor.
    """
    kv_head, row, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    context = tl.load(context_len + row)
    width = _split_width(context, SPLITS, BLOCK, LEAST)
    begin = split * width
    end = tl.minimum(begin + width, context)
    parts: tl.constexpr = (WIDTH + PART - 1) // PART
    r = tl.arange(0, BLOCK_M)
    d = tl.arange(0, PART)
    head = kv_head * GROUP + r
    in_group = r < GROUP
    offsets = row.to(tl.int64) * out_row + head * out_head
    if begin < end:
        totals, top, weight = _attend(
            query, kv, scales, page_table + tl.load(table_row + row) * table_stride, row, context - 1, 1,
            begin, end, kv_head, scale,
            query_row * QUERY_UNIT, query_head * QUERY_UNIT, kv_page * KV_UNIT, kv_value * KV_UNIT,
            kv_token * KV_UNIT, kv_head_stride * KV_UNIT, scale_page, scale_value, scale_token, scale_head,
            GROUP, BLOCK_M, BLOCK, WIDTH, PART, PAGE, DOT, FP8,
        )  # fmt: skip
        place = (row.to(tl.int64) * HEADS + head) * SPLITS + split
        if SPLITS > 1:
            tl.store(logs + place, top + tl.log2(weight), mask=in_group)
        for part in tl.static_range(parts):
            column = part * PART + d
            total = totals[part] / weight[:, None]
            mask = in_group[:, None] & (column < WIDTH)[None, :]
            if SPLITS == 1:
                tl.store(out + offsets[:, None] + column[None, :], total.to(out.dtype.element_ty), mask=mask)
            else:
                tl.store(attended + place[:, None] * WIDTH + column[None, :], total, mask=mask)
    elif SPLITS == 1:
        zeros = tl.zeros([BLOCK_M, PART], tl.float32).to(out.dtype.element_ty)
        for part in tl.static_range(parts):
            column = part * PART + d
            mask = in_group[:, None] & (column < WIDTH)[None, :]
            tl.store(out + offsets[:, None] + column[None, :], zeros, mask=mask)


@triton.jit(do_not_specialize=["out_row", "out_head"])
def combine_kernel(
    attended, logs, context_len, out, out_row: tl.int64, out_head: tl.int64,
    HEADS: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    SPLITS: tl.constexpr, LEAST: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """Grid (heads, rows): add the results of the SPLITS parts of a row by their weights, TOGETHER at once.

    A row without context becomes zero.
    """
    head, row = tl.program_id(0), tl.program_id(1)
    context = tl.load(context_len + row)
    width = _split_width(context, SPLITS, BLOCK, LEAST)
    first = (row.to(tl.int64) * HEADS + head) * SPLITS
    split = tl.arange(0, SPLITS)
    log = tl.load(logs + first + split, mask=split * width < context, other=float("-inf"))
    top = tl.maximum(tl.max(log, 0), -1.0e38)
    weight = tl.maximum(tl.sum(tl.exp2(log - top), 0), 1.0e-37)
    d = tl.arange(0, PADDED)
    total = tl.zeros([PADDED], tl.float32)
    for start in range(0, tl.cdiv(context, width), TOGETHER):
        s = start + tl.arange(0, TOGETHER)
        in_context = s * width < context
        share = tl.exp2(tl.load(logs + first + s, mask=in_context, other=float("-inf")) - top)
        mask = in_context[:, None] & (d < WIDTH)[None, :]
        values = tl.load(attended + (first + s)[:, None] * WIDTH + d[None, :], mask=mask, other=0)
        total += tl.sum(values * share[:, None], 0)
    offset = row.to(tl.int64) * out_row + head * out_head
    tl.store(out + offset + d, (total / weight).to(out.dtype.element_ty), mask=d < WIDTH)


@triton.jit(do_not_specialize=["first", "query_row", "query_head", "table_stride", "out_row", "out_head",
                               "kv_page", "kv_value", "kv_token", "kv_head_stride", "scale",
                               "scale_page", "scale_value", "scale_token", "scale_head"])  # fmt: skip
def extend_kernel(
    query, kv, scales, page_table, table_row, context_len, query_start, out, first, scale,
    query_row: tl.int64, query_head: tl.int64, table_stride: tl.int64, out_row: tl.int64, out_head: tl.int64,
    kv_page: tl.int64, kv_value: tl.int64, kv_token: tl.int64, kv_head_stride: tl.int64,
    scale_page: tl.int64, scale_value: tl.int64, scale_token: tl.int64, scale_head: tl.int64,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
    PART: tl.constexpr, PAGE: tl.constexpr, QUERY_UNIT: tl.constexpr, KV_UNIT: tl.constexpr,
    DOT: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of queries of the longest piece, kv_heads, pieces); `first`: sequence of the first piece.

    A block is BLOCK_M // GROUP queries with all heads of one KV head: they read the same keys.
    """
    QUERIES: tl.constexpr = BLOCK_M // GROUP
    kv_head = tl.program_id(1)
    sequence = first + tl.program_id(2)
    start = tl.load(query_start + sequence)
    length = tl.load(query_start + sequence + 1) - start
    # Longest first: the last queries of a piece attend to most positions.
    block = tl.cdiv(length, QUERIES) - 1 - tl.program_id(0)
    if block >= 0:
        context = tl.load(context_len + sequence)
        offset = block * QUERIES
        queries = tl.minimum(length - offset, QUERIES)
        position = context - length + offset
        totals, _, weight = _attend(
            query, kv, scales, page_table + tl.load(table_row + sequence) * table_stride, start + offset,
            position, queries, 0, position + queries, kv_head, scale,
            query_row * QUERY_UNIT, query_head * QUERY_UNIT, kv_page * KV_UNIT, kv_value * KV_UNIT,
            kv_token * KV_UNIT, kv_head_stride * KV_UNIT, scale_page, scale_value, scale_token, scale_head,
            GROUP, BLOCK_M, BLOCK, WIDTH, PART, PAGE, DOT, FP8,
        )  # fmt: skip
        r = tl.arange(0, BLOCK_M)
        d = tl.arange(0, PART)
        offsets = (start + offset + r // GROUP).to(tl.int64) * out_row + (
            kv_head * GROUP + r % GROUP
        ) * out_head
        for part in tl.static_range((WIDTH + PART - 1) // PART):
            column = part * PART + d
            mask = (r < queries * GROUP)[:, None] & (column < WIDTH)[None, :]
            total = (totals[part] / weight[:, None]).to(out.dtype.element_ty)
            tl.store(out + offsets[:, None] + column[None, :], total, mask=mask)


def why_not(heads: int, kv_heads: int, head_dim: int, kind: torch.dtype) -> str:
    """Return why the kernels cannot attend with such heads of type `kind`; empty if they can."""
    if heads % kv_heads:
        return f"query has {heads} heads; it must be a multiple of the {kv_heads} of kv"
    most = WIDE_HEAD if kind == torch.float32 else MOST_HEAD_DIM
    if head_dim > most:
        return f"kv has heads of {head_dim}; they must be at most {most}"
    if heads // kv_heads > MOST_GROUP:
        return f"query has {heads // kv_heads} heads for each of kv; they must be at most {MOST_GROUP}"
    return ""


def splits(kv_heads: int) -> int:
    """Return the largest number of splits of a decode's context: enough to fill a GPU with one sequence."""
    return block_of(max(1, PROGRAMS // kv_heads))


def paged_attention(
    query: torch.Tensor, kv: Pages, scale: float, plan: AttentionPlan, out: torch.Tensor
) -> None:
    """Compute softmax(scale q K^T) V over each row's context, causal, with grouped query heads.

    `query` is [T, heads, head_dim]; `kv` is [pages, 2, page_size, kv_heads, head_dim]; `out` is like query,
    written; of all three head_dim is dense. The plan's tables lie on the kernels' device. Raises
    WrongArgument.
    """
    for call in calls(query, kv, scale, plan, out):
        call.run()


def calls(
    query: torch.Tensor, kv: Pages, scale: float, plan: AttentionPlan, out: torch.Tensor
) -> list[KernelCall]:
    """Check the arguments of `paged_attention` and return its launches."""
    numbers, scales = stored_parts(kv)
    _, _, page_size, kv_heads, width = numbers.shape
    device, is_fp8 = numbers.device, isinstance(kv, Fp8Pages)
    check("query", query, [None, None, width], device=device)
    check_plan("query", query, plan.tokens)
    rows, heads, _ = query.shape
    check("out", out, [rows, heads, width], device=device)
    check("plan.context_len", plan.context_len, [None], dtypes=(torch.int32,), device=device)
    sequences = len(plan.context_len)
    for name, tensor, shape in (
        ("page_table", plan.page_table, [None, None]),
        ("table_row", plan.table_row, [sequences]),
        ("query_start", plan.query_start, [sequences + 1]),
    ):
        check(f"plan.{name}", tensor, shape, dtypes=(torch.int32,), device=device)
    kind = query.dtype if is_fp8 else numbers.dtype
    if why := why_not(heads, kv_heads, width, kind):
        raise (WrongArgument if heads % kv_heads else UnsupportedArgument)(why)
    group = heads // kv_heads
    query_unit, kv_unit = stride_unit(query.stride()[:2]), stride_unit(numbers.stride()[:4])
    page, half, token, head = (stride // kv_unit for stride in numbers.stride()[:4])
    arguments = {
        "query": query, "kv": numbers, "scales": scales, "page_table": plan.page_table,
        "table_row": plan.table_row, "context_len": plan.context_len, "out": out, "scale": scale * LOG2_E,
        "query_row": query.stride(0) // query_unit, "query_head": query.stride(1) // query_unit,
        "table_stride": plan.page_table.stride(0), "out_row": out.stride(0), "out_head": out.stride(1),
        "kv_page": page, "kv_value": half, "kv_token": token, "kv_head_stride": head,
        **scale_strides(scales),
    }  # fmt: skip
    constants = {
        "GROUP": group, "WIDTH": width, "PAGE": page_size,
        "QUERY_UNIT": query_unit, "KV_UNIT": kv_unit, "DOT": dot_dtype(kind), "FP8": is_fp8,
    }  # fmt: skip
    launches = []
    if plan.decodes:
        launches += _decode(plan, kv_heads, kind, arguments, constants)
    if plan.longest_piece:
        launch = launch_for(
            "paged_extend",
            device,
            _shape(group, width, kind, constants),
            _extend_default(width, kind, is_fp8, warp_groups(device)),
        )
        block = block_of(group, least=launch.blocks["M"])
        grid = (ceil_div(plan.longest_piece, block // group), kv_heads, sequences - plan.decodes)
        piece_arguments = {"query_start": plan.query_start, "first": plan.decodes}
        sizes = {"BLOCK_M": block, "BLOCK": launch.blocks["N"], "PART": _part(width, launch)}
        launches.append(
            KernelCall(extend_kernel, grid, arguments | piece_arguments, constants | sizes, launch)
        )
    return launches


def _decode(
    plan: AttentionPlan,
    kv_heads: int,
    kind: torch.dtype,
    arguments: dict[str, Any],
    constants: dict[str, Any],
) -> list[KernelCall]:
    out: torch.Tensor = arguments["out"]
    heads, count, width = out.shape[1], splits(kv_heads), constants["WIDTH"]
    shape = _shape(constants["GROUP"], width, kind, constants)
    launch = launch_for("paged_decode", out.device, shape, _decode_default(width, kind))
    cut = {"HEADS": heads, "SPLITS": count, "LEAST": LEAST_SPLIT, "BLOCK": launch.blocks["N"]}
    single = count == 1
    attended = out.new_empty(1 if single else plan.decodes * heads * count * width, dtype=torch.float32)
    logs = out.new_empty(1 if single else plan.decodes * heads * count, dtype=torch.float32)
    scratch = {"attended": attended, "logs": logs}
    block = {"BLOCK_M": block_of(constants["GROUP"], least=16), "PART": _part(width, launch)}
    grid = (kv_heads, plan.decodes, count)
    launches = [KernelCall(decode_kernel, grid, arguments | scratch, constants | cut | block, launch)]
    if not single:
        combine_arguments = {name: arguments[name] for name in ("context_len", "out", "out_row", "out_head")}
        padded = block_of(width, least=16)
        together = min(count, max(1, TOGETHER // padded))
        combine_constants = {"WIDTH": width, "PADDED": padded, "TOGETHER": together}
        launches.append(
            KernelCall(
                combine_kernel,
                (heads, plan.decodes),
                combine_arguments | scratch,
                combine_constants | cut,
                Launch(2),
            )
        )
    return launches


# Tiles with which sums and operands stay in registers, and whose stages fit the shared memory of every
# supported GPU: 99 KiB on the smallest. A float32 operand takes the registers of two in a product.


def _decode_default(width: int, kind: torch.dtype) -> Launch:
    padded = block_of(width, least=16)
    if padded > WIDE_HEAD:
        return Launch(8, 2, {"N": 16, "D": 64})
    if kind == torch.float32:
        return Launch(4, 2, {"N": 32 if padded <= 128 else 16, "D": min(padded, 64)})
    return Launch(4, 3, {"N": 64 if padded <= 128 else 32, "D": padded})


def _extend_default(width: int, kind: torch.dtype, is_fp8: bool, together: bool) -> Launch:
    """Return the default tiles of a piece.

    `is_fp8` says whether the pages are FP8, whose numbers take registers while they are widened; `together`
    is the result of `warp_groups`.
    """
    padded = block_of(width, least=16)
    if padded > WIDE_HEAD:
        return Launch(8, 2, {"M": 16, "N": 16, "D": 64})
    if kind == torch.float32:
        narrow = padded <= 128
        return Launch(4, 2, {"M": 16, "N": 32 if narrow else 16, "D": min(padded, 64 if narrow else 128)})
    if padded <= 128:
        wide = together or (padded <= 64 and not is_fp8)
        return Launch(4, 3, {"M": 64, "N": 64 if wide else 32, "D": padded})
    return Launch(8, 2, {"M": 64, "N": 32, "D": padded})


def _shape(group: int, width: int, kind: torch.dtype, constants: dict[str, Any]) -> str:
    """Return the name, in the table of launches, of `group` query heads of `width` for each KV head."""
    return f"{group}x{width} {'fp8, ' if constants['FP8'] else ''}{kind}"


def _part(width: int, launch: Launch) -> int:
    return min(block_of(width, least=16), launch.blocks["D"])
