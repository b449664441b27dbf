# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""A mixture of experts on a GPU by grouped products, without a host sync; see README.md.

A pair of a row and one of its experts has the number row * k + j. Pairs are sorted by expert into blocks that
belong to one expert each. The largest number of blocks follows from shapes alone, and a program without a
block ends at once.
"""

from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl

from mamba_kernels.four_bit.matrix import FourBitMatrix
from mamba_kernels.four_bit.tiles import FORM, PLAIN, accumulate
from mamba_kernels.four_bit.triton import arguments_of, check_matrix
from mamba_kernels.fp8.matrix import GROUP, Fp8Matrix
from mamba_kernels.fp8.matrix import KIND as FP8
from mamba_kernels.moe.activation import Activation
from mamba_kernels.moe.expert_blocks import LEAST_ROWS, ExpertBlocks, rows_of_a_block, sort_calls
from mamba_kernels.moe.expert_weights import ExpertWeights, of_one
from mamba_kernels.moe.route_kernel import route_call
from mamba_kernels.moe.routing import Routing
from mamba_kernels.moe.shared_expert import SharedExpert
from mamba_kernels.triton_support import (
    KernelCall,
    Launch,
    UnsupportedArgument,
    WrongArgument,
    block_of,
    ceil_div,
    check,
    dot_dtype,
    launch_for,
    stride_unit,
    warp_groups,
)

MOST_EXPERTS = 4096
MOST_PAIRS = 1 << 30
_PLAIN = tl.constexpr(PLAIN)


@triton.jit
def _pairs_of(block, block_pairs, pairs, ROUTED: tl.constexpr, ROWS: tl.constexpr):
    """Return the pairs of a block and a mask of the valid ones; pairs of a shared expert are rows."""
    places = block * ROWS + tl.arange(0, ROWS)
    if ROUTED:
        pair = tl.load(block_pairs + places)
        valid = pair >= 0
    else:
        pair = places
        valid = places < pairs
    return pair, valid


@triton.jit
def _four_bit_product(
    x, row, valid, expert, codes, scales, zeros, factors, order, n, groups, group,
    WIDTH: tl.constexpr, FEATURES: tl.constexpr, GATED: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, DOT: tl.constexpr, FORM: tl.constexpr,
):  # fmt: skip
    """Compute `_product` with the matrix of an expert that has four bits."""
    mask = n < FEATURES
    feature = tl.cast(expert, tl.int64) * (FEATURES * (2 if GATED else 1)) + n
    if order is not None:
        order += tl.cast(expert, tl.int64) * WIDTH
    total, second = accumulate(
        x, row, valid, codes, scales, zeros, order, feature, mask, feature + FEATURES,
        0, WIDTH // 32, WIDTH, groups, group, FORM, GATED, ROWS, BLOCK_N, BLOCK_K // 32, DOT,
    )  # fmt: skip
    if factors is not None:
        total *= tl.load(factors + feature, mask=mask, other=0.0)[:, None]
        if GATED:
            second *= tl.load(factors + feature + FEATURES, mask=mask, other=0.0)[:, None]
    return tl.trans(total), tl.trans(second)


@triton.jit
def _product(
    x, row, valid, weight, feature, weight_row, scales, groups,
    WIDTH: tl.constexpr, FEATURES: tl.constexpr, GATED: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, DOT: tl.constexpr, GROUPED: tl.constexpr,
):  # fmt: skip
    """Multiply rows of x, which begin at `row`, by rows `feature` of a matrix: [ROWS, BLOCK_N].

    If GATED, the second result is their product with the rows that lie FEATURES rows further on. `scales` has
    `groups` numbers for each row of the matrix, by which a tile over the inputs is multiplied, or, if there
    is one group, the whole product.
    """
    total = tl.zeros([ROWS, BLOCK_N], tl.float32)
    second = tl.zeros([ROWS, BLOCK_N], tl.float32)
    k = tl.arange(0, BLOCK_K)
    feature_mask = feature < FEATURES
    first_row = feature.to(tl.int64) * weight_row
    second_row = (feature + FEATURES).to(tl.int64) * weight_row
    for start in range(0, WIDTH, BLOCK_K):
        n = start + k
        inside = n < WIDTH
        rows = tl.load(x + row[:, None] + n[None, :], mask=valid[:, None] & inside[None, :], other=0).to(DOT)
        mask = feature_mask[:, None] & inside[None, :]
        columns = tl.load(weight + first_row[:, None] + n[None, :], mask=mask, other=0.0)
        if GROUPED:
            scale = scales + feature * groups + start // 128
            part = tl.dot(rows, tl.trans(columns.to(DOT)), input_precision="tf32x3")
            total += part * tl.load(scale, mask=feature_mask, other=0.0)[None, :]
        else:
            total = tl.dot(rows, tl.trans(columns.to(DOT)), total, input_precision="tf32x3")
        if GATED:
            columns = tl.load(weight + second_row[:, None] + n[None, :], mask=mask, other=0.0)
            if GROUPED:
                scale = scales + (feature + FEATURES) * groups + start // 128
                part = tl.dot(rows, tl.trans(columns.to(DOT)), input_precision="tf32x3")
                second += part * tl.load(scale, mask=feature_mask, other=0.0)[None, :]
            else:
                second = tl.dot(rows, tl.trans(columns.to(DOT)), second, input_precision="tf32x3")
    if scales is not None and not GROUPED:
        total *= tl.load(scales + feature, mask=feature_mask, other=0.0)[None, :]
        if GATED:
            second *= tl.load(scales + feature + FEATURES, mask=feature_mask, other=0.0)[None, :]
    return total, second


@triton.jit(do_not_specialize=["pairs", "x_row", "weight_expert", "weight_row"])
def expand_kernel(
    x, weight, scales, zeros, factors, order, block_expert, block_pairs, inner, pairs,
    x_row: tl.int64, weight_expert: tl.int64, weight_row: tl.int64, groups, group,
    TOP_K: tl.constexpr, WIDTH: tl.constexpr, FEATURES: tl.constexpr, GATED: tl.constexpr,
    ROUTED: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    X_UNIT: tl.constexpr, WEIGHT_UNIT: tl.constexpr, DOT: tl.constexpr, FORM: tl.constexpr,
    GROUPED: tl.constexpr,
):  # fmt: skip
    """Grid (blocks, tiles of inner features): store activation(x W^T) of each pair, [pairs, FEATURES]."""
    block = tl.program_id(0)
    expert = 0
    if ROUTED:
        expert = tl.load(block_expert + block)
    if expert >= 0:
        pair, valid = _pairs_of(block, block_pairs, pairs, ROUTED, ROWS)
        feature = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        row = (pair // TOP_K).to(tl.int64) * x_row * X_UNIT
        if FORM == _PLAIN:
            matrix = weight + tl.cast(expert, tl.int64) * weight_expert * WEIGHT_UNIT
            own_scales = scales
            if scales is not None:
                own_scales = scales + tl.cast(expert, tl.int64) * (FEATURES * (2 if GATED else 1)) * groups
            inner_value, up = _product(
                x, row, valid, matrix, feature, weight_row * WEIGHT_UNIT, own_scales, groups,
                WIDTH, FEATURES, GATED, ROWS, BLOCK_N, BLOCK_K, DOT, GROUPED,
            )  # fmt: skip
        else:
            inner_value, up = _four_bit_product(
                x, row, valid, expert, weight, scales, zeros, factors, order, feature, groups, group,
                WIDTH, FEATURES, GATED, ROWS, BLOCK_N, BLOCK_K, DOT, FORM,
            )  # fmt: skip
        if GATED:
            inner_value = inner_value / (1.0 + tl.exp(-inner_value)) * up
        else:
            inner_value = tl.maximum(inner_value, 0.0)
            inner_value = inner_value * inner_value
        offsets = pair.to(tl.int64)[:, None] * FEATURES + feature[None, :]
        mask = valid[:, None] & (feature < FEATURES)[None, :]
        tl.store(inner + offsets, inner_value.to(inner.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["pairs", "weight_expert", "weight_row", "count_row"])
def project_kernel(
    inner, weight, scales, zeros, factors, order, block_expert, block_pairs, counts_for, parts, pairs,
    weight_expert: tl.int64, weight_row: tl.int64, count_row: tl.int64, groups, group,
    WIDTH: tl.constexpr, FEATURES: tl.constexpr, ROUTED: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, WEIGHT_UNIT: tl.constexpr, DOT: tl.constexpr,
    FORM: tl.constexpr, GROUPED: tl.constexpr,
):  # fmt: skip
    """Grid (blocks, tiles of outputs): store what each pair adds to its row, float32 [pairs, FEATURES].

    `counts_for` holds the weight of each pair, or, for a shared expert, the logit of each row's weight.
    """
    block = tl.program_id(0)
    expert = 0
    if ROUTED:
        expert = tl.load(block_expert + block)
    if expert >= 0:
        pair, valid = _pairs_of(block, block_pairs, pairs, ROUTED, ROWS)
        feature = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        wide = pair.to(tl.int64)
        if FORM == _PLAIN:
            matrix = weight + tl.cast(expert, tl.int64) * weight_expert * WEIGHT_UNIT
            own_scales = scales
            if scales is not None:
                own_scales = scales + tl.cast(expert, tl.int64) * FEATURES * groups
            result, _ = _product(
                inner, wide * WIDTH, valid, matrix, feature, weight_row * WEIGHT_UNIT, own_scales, groups,
                WIDTH, FEATURES, False, ROWS, BLOCK_N, BLOCK_K, DOT, GROUPED,
            )  # fmt: skip
        else:
            result, _ = _four_bit_product(
                inner, wide * WIDTH, valid, expert, weight, scales, zeros, factors, order, feature, groups,
                group, WIDTH, FEATURES, False, ROWS, BLOCK_N, BLOCK_K, DOT, FORM,
            )  # fmt: skip
        if counts_for is not None:
            counts = tl.load(counts_for + wide * count_row, mask=valid, other=0.0)
            if not ROUTED:
                counts = tl.sigmoid(counts)
            result *= counts[:, None]
        mask = valid[:, None] & (feature < FEATURES)[None, :]
        tl.store(parts + wide[:, None] * FEATURES + feature[None, :], result, mask=mask)


@triton.jit(do_not_specialize=["out_row"])
def combine_kernel(
    parts, experts, shared, out, out_row: tl.int64,
    TOP_K: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, OUT_UNIT: tl.constexpr,
):  # fmt: skip
    """Grid (rows, tiles of outputs): add a row's parts in the order of its experts, the shared one last."""
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for j in range(TOP_K):
        pair = row * TOP_K + j
        # A bound instead of a condition: nothing was written for a pair without an expert.
        bound = tl.where(tl.load(experts + pair) >= 0, WIDTH, 0)
        total += tl.load(parts + pair * WIDTH + d, mask=d < bound, other=0.0)
    if shared is not None:
        total += tl.load(shared + row * WIDTH + d, mask=d < WIDTH, other=0.0)
    tl.store(out + row * out_row * OUT_UNIT + d, total.to(out.dtype.element_ty), mask=d < WIDTH)


def route(
    logits: torch.Tensor, routing: Routing, correction: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the experts of each row, [n, k] int32, best first, and their weights, in one launch.

    `logits` are [n, E] float32, rows may be strided; `correction` is [E] float32. Raises ValueError,
    WrongArgument.
    """
    n, k = len(logits), routing.top_k
    experts = torch.empty(n, k, dtype=torch.int32, device=logits.device)
    weights = torch.empty(n, k, dtype=torch.float32, device=logits.device)
    route_call(logits, routing, correction, experts, weights).run()
    return experts, weights


def moe(
    hidden: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    gate_up: ExpertWeights,
    down: ExpertWeights,
    activation: Activation,
    out: torch.Tensor,
    shared: SharedExpert | None = None,
) -> None:
    """Compute out_i = sum over j of weights_ij * expert_ij(hidden_i), and add the shared expert last.

    `hidden` is [n, d]; `experts` are [n, k] int32, -1 = none; `weights` are [n, k] float32; `gate_up` is [E,
    f or 2 f, d] and `down` is [E, d_out, f], in the type of `hidden`, of four bits or FP8; `out` is [n,
    d_out], written. Raises WrongArgument.
    """
    for call in calls(hidden, experts, weights, gate_up, down, activation, out, shared):
        call.run()


def calls(
    hidden: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    gate_up: ExpertWeights,
    down: ExpertWeights,
    activation: Activation,
    out: torch.Tensor,
    shared: SharedExpert | None = None,
) -> list[KernelCall]:
    """Check the arguments of `moe` and return its launches.

    There are one or two launches that sort, two products (two more for a shared expert), and one that adds.
    Raises WrongArgument, UnsupportedArgument.
    """
    check("hidden", hidden, (None, None))
    device, n = hidden.device, len(hidden)
    if experts.dim() != 2 or not experts.shape[1] or experts.numel() > MOST_PAIRS:
        raise UnsupportedArgument(f"experts has shape {list(experts.shape)}; it must be [{n}, 1 or more]")
    check("experts", experts, (n, None), dtypes=(torch.int32,), device=device, dense_from=0)
    k = experts.shape[1]
    check("weights", weights, (n, k), dtypes=(torch.float32,), device=device, dense_from=0)
    _check_experts("", hidden, gate_up, down, activation)
    count, d_out = int(down.shape[0]), int(down.shape[1])
    check("out", out, (n, d_out), device=device)
    if not 0 < count <= MOST_EXPERTS:
        raise UnsupportedArgument(f"gate_up has {count} experts; there must be 1 to {MOST_EXPERTS}")
    if not n:
        return []
    blocks = ExpertBlocks.empty(experts, count)
    products, parts = _products(hidden, gate_up, down, activation, k, weights, blocks)
    shared_parts = None
    if shared is not None:
        one_up, one_down = of_one(shared.gate_up), of_one(shared.down)
        _check_experts("shared.", hidden, one_up, one_down, activation)
        if one_down.shape[1] != d_out:
            raise WrongArgument(f"shared.down has {one_down.shape[1]} outputs; it must have {d_out}")
        if shared.logit is not None:
            check("shared.logit", shared.logit[..., None], (n, 1), dtypes=(torch.float32,), device=device)
        shared_products, shared_parts = _products(hidden, one_up, one_down, activation, 1, shared.logit, None)
        products += shared_products
    unit, block = stride_unit(out.stride()[:1]), block_of(d_out, least=128, most=1024)
    combine = KernelCall(
        combine_kernel,
        (n, ceil_div(d_out, block)),
        {
            "parts": parts,
            "experts": experts,
            "shared": shared_parts,
            "out": out,
            "out_row": out.stride(0) // unit,
        },
        {"TOP_K": k, "WIDTH": d_out, "BLOCK": block, "OUT_UNIT": unit},
        Launch(max(1, block // 256)),
    )
    return [*sort_calls(experts, count, blocks), *products, combine]


def _check_experts(
    owner: str, hidden: torch.Tensor, gate_up: ExpertWeights, down: ExpertWeights, activation: Activation
) -> None:
    _check_weight(f"{owner}down", down, (None, None, None), hidden)
    count, _, f = down.shape
    _check_weight(f"{owner}gate_up", gate_up, (count, activation.projections * f, hidden.shape[1]), hidden)


def _check_weight(
    name: str, weight: ExpertWeights, shape: tuple[int | None, ...], hidden: torch.Tensor
) -> None:
    if isinstance(weight, FourBitMatrix):
        check_matrix(name, weight, hidden.device, shape)
        return
    if isinstance(weight, torch.Tensor):
        check(name, weight, shape, dtypes=(hidden.dtype,), device=hidden.device)
        return
    numbers, scales = weight.numbers, weight.scales
    check(name, numbers, shape, dtypes=(FP8,), device=hidden.device)
    rows: dict[str, Any] = {"device": hidden.device, "dense_from": 0}
    check(f"{name}.scales", scales, (*numbers.shape[:2], None), dtypes=(torch.float32,), **rows)
    if scales.shape[2] not in (1, groups := ceil_div(numbers.shape[2], GROUP)):
        raise UnsupportedArgument(f"{name}.scales has {scales.shape[2]} groups; it must have {groups}")


def _default_launch(x: torch.Tensor, weight: ExpertWeights, rows: int, blocks: ExpertBlocks | None) -> Launch:
    """Return the tiles of a product of blocks of `rows` rows."""
    if x.dtype == torch.float32:
        # A float32 operand takes the registers of two while it is multiplied.
        default = Launch(4, 2, {"N": 32, "K": 32})
    elif rows == LEAST_ROWS:
        default = Launch(4, 3, {"N": 64, "K": 128})
    else:
        # A shared expert's rows leave no registers for wide operands, unless those are in shared memory.
        default = Launch(4, 3, {"N": 64, "K": 32 if blocks is None and not warp_groups(x.device) else 64})
    if isinstance(weight, Fp8Matrix) and weight.groups > 1:
        # Each tile is summed by itself, beside the sum of all.
        default = replace(default, blocks={"N": 32, "K": min(64, default.blocks["K"])})
    return default


def _form_of(weight: ExpertWeights) -> str:
    """Return what the name of a shape says of the weights, whose tiles are measured for each form.

    The tile of a product with scales of groups must not reach across groups.
    """
    if isinstance(weight, FourBitMatrix):
        return f" {weight.code}"
    if isinstance(weight, Fp8Matrix):
        return " fp8 groups" if weight.groups > 1 else " fp8"
    return ""


def _products(
    x: torch.Tensor,
    gate_up: ExpertWeights,
    down: ExpertWeights,
    activation: Activation,
    k: int,
    weights: torch.Tensor | None,
    blocks: ExpertBlocks | None,
) -> tuple[list[KernelCall], torch.Tensor]:
    """Return both products and the tensor of their results; without blocks every row goes to expert 0.

    `k` is the number of experts of a row. `weights` are the weights of the pairs, or the logits of a shared
    expert's weights; None = 1.
    """
    pairs, d, (_, d_out, f) = len(x) * k, x.shape[1], down.shape
    inner, parts = x.new_empty(pairs, f), x.new_empty(pairs, d_out, dtype=torch.float32)
    rows = rows_of_a_block(pairs, 1) if blocks is None else blocks.rows
    count = ceil_div(pairs, rows) if blocks is None else len(blocks.expert)
    launches = []
    for kernel, weight, width, features in (
        (expand_kernel, gate_up, d, f),
        (project_kernel, down, f, d_out),
    ):
        first = kernel is expand_kernel
        shape = f"m{rows} d{d} f{f} {x.dtype}{_form_of(weight)}"
        default = _default_launch(x, weight, rows, blocks)
        launch = launch_for("moe_expand" if first else "moe_project", x.device, shape, default)
        arguments, of_weight = _weight_arguments(weight)
        arguments |= {
            "inner": inner, "pairs": pairs,
            "block_expert": None if blocks is None else blocks.expert,
            "block_pairs": None if blocks is None else blocks.pairs,
        }  # fmt: skip
        constants = of_weight | {
            "WIDTH": width, "FEATURES": features, "ROUTED": blocks is not None, "ROWS": rows,
            "BLOCK_N": launch.blocks["N"], "BLOCK_K": launch.blocks["K"], "DOT": dot_dtype(x.dtype),
        }  # fmt: skip
        if first:
            x_unit = stride_unit(x.stride()[:1])
            arguments |= {"x": x, "x_row": x.stride(0) // x_unit}
            constants |= {"TOP_K": k, "GATED": activation is Activation.GATED_SILU, "X_UNIT": x_unit}
        else:
            # Weights of pairs are dense; logits of a shared expert may be a column of a product.
            row = 1 if weights is None or weights.dim() > 1 else weights.stride(0)
            arguments |= {"counts_for": weights, "count_row": row, "parts": parts}
        grid = (count, ceil_div(features, launch.blocks["N"]))
        launches.append(KernelCall(kernel, grid, arguments, constants, launch))
    return launches, parts


def _weight_arguments(weight: ExpertWeights) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the matrices of all experts as arguments and constants of a kernel."""
    if isinstance(weight, FourBitMatrix):
        arguments = arguments_of(weight)
        arguments |= {"weight": arguments.pop("codes"), "weight_expert": 0, "weight_row": 0}
        return arguments, {"WEIGHT_UNIT": 1, "FORM": FORM[weight.code], "GROUPED": False}
    numbers, scales = (weight.numbers, weight.scales) if isinstance(weight, Fp8Matrix) else (weight, None)
    groups = 0 if scales is None else scales.shape[2]
    unit = stride_unit(numbers.stride()[:2])
    arguments = {
        "weight": numbers, "scales": scales, "groups": groups, "group": 0,
        "weight_expert": numbers.stride(0) // unit, "weight_row": numbers.stride(1) // unit,
        **dict.fromkeys(("zeros", "factors", "order")),
    }  # fmt: skip
    return arguments, {"WEIGHT_UNIT": unit, "FORM": PLAIN, "GROUPED": groups > 1}
