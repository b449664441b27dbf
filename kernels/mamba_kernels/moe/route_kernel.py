# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The choice of experts on a GPU, one program per row; see README.md."""

import torch
import triton
import triton.language as tl

from mamba_kernels.moe.routing import LEAST_SUM, Routing, check_rule
from mamba_kernels.triton_support import (
    KernelCall,
    Launch,
    UnsupportedArgument,
    WrongArgument,
    block_of,
    check,
    stride_unit,
)

MOST_SCORES = 1024
"""Largest number of scores of a row, padding of groups included: they stay in the registers of one warp."""
_LEAST_SUM = tl.constexpr(LEAST_SUM)
_FIRST = tl.constexpr(0x7FFFFFFF)
"""Order of NaN: before all numbers."""
_GONE = tl.constexpr(-0x80000000)
"""Order of chosen experts and of padding: after all numbers."""
_LOWEST = tl.constexpr(-0x7F800001)
"""Order of minus infinity."""


def route_call(
    logits: torch.Tensor,
    routing: Routing,
    correction: torch.Tensor | None,
    experts: torch.Tensor,
    weights: torch.Tensor,
) -> KernelCall:
    """Check the arguments of `route` and return its launch.

    The launch writes experts, [n, k] int32, and weights, [n, k] float32, both dense. Raises WrongArgument,
    UnsupportedArgument.
    """
    check_rule(routing, correction)
    check("logits", logits, (None, None), dtypes=(torch.float32,))
    n, count = logits.shape
    if not 0 < routing.top_k <= count:
        raise UnsupportedArgument(f"top_k is {routing.top_k}; of {count} experts there must be 1 to {count}")
    if routing.groups < 1 or count % routing.groups:
        raise WrongArgument(f"groups is {routing.groups}; it must divide the {count} experts")
    if correction is not None:
        check("correction", correction, (count,), dtypes=(torch.float32,), device=logits.device)
    grouped = routing.kept_groups < routing.groups
    groups = routing.groups if grouped else 1
    size = count // groups
    if block_of(groups) * block_of(size) > MOST_SCORES:
        raise UnsupportedArgument(
            f"logits are of {count} experts in {groups} groups; the kernel takes {MOST_SCORES} at most"
        )
    unit = stride_unit(logits.stride()[:1])
    return KernelCall(
        _route,
        (n,),
        {
            "logits": logits, "logits_row": logits.stride(0) // unit, "correction": correction,
            "experts": experts, "weights": weights, "scale": float(routing.scale),
        },
        {
            "TOP_K": routing.top_k, "PADDED_K": block_of(routing.top_k),
            "GROUPS": groups, "SIZE": size, "PADDED_GROUPS": block_of(groups), "PADDED_SIZE": block_of(size),
            "KEPT": routing.kept_groups if grouped else 1,
            "SIGMOID": routing.scores == "sigmoid", "RENORMALISE": routing.renormalise, "UNIT": unit,
        },
        # One warp: all threads know the result of a pass without a barrier.
        Launch(1),
    )  # fmt: skip


@triton.jit
def _order_of(x):
    """Map float32 numbers to int32 numbers in the order of torch's sort.

    In ascending order NaN comes last, and both zeros are equal.
    """
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return tl.where(x != x, _FIRST, tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF))


@triton.jit
def _number_of(order):
    """Return the float32 number with this order."""
    return tl.where(order >= 0, order, order ^ 0x7FFFFFFF).to(tl.float32, bitcast=True)


@triton.jit
def _first_of_the_greatest(order, place, PADDED: tl.constexpr):
    """Return the smallest `place` among those with the greatest `order`."""
    return tl.min(tl.where(order == tl.max(order, 0), place, PADDED), 0)


@triton.jit
def _sigmoid(x):
    """Compute the sigmoid with the quotient rounded as in torch: near 1 scores are often equal."""
    return tl.div_rn(tl.full(x.shape, 1.0, tl.float32), 1.0 + tl.exp(-x))


@triton.jit
def _drop_groups(order, GROUPS: tl.constexpr, SIZE: tl.constexpr, PADDED_GROUPS: tl.constexpr,
          PADDED_SIZE: tl.constexpr, KEPT: tl.constexpr):  # fmt: skip
    """Return `order` [groups, size] with minus infinity in the groups that are excluded from the choice."""
    g, s = tl.arange(0, PADDED_GROUPS), tl.arange(0, PADDED_SIZE)
    best = tl.max(order, 1)
    total = _number_of(best)
    if SIZE > 1:
        best_member = tl.min(tl.where(order == best[:, None], s[None, :], PADDED_SIZE), 1)
        total += _number_of(tl.max(tl.where(s[None, :] == best_member[:, None], _GONE, order), 1))
    remaining = tl.where(g < GROUPS, _order_of(total), _GONE)
    kept_mask = g < 0
    for _ in tl.static_range(KEPT):
        group = _first_of_the_greatest(remaining, g, PADDED_GROUPS)
        kept_mask = kept_mask | (g == group)
        remaining = tl.where(g == group, _GONE, remaining)
    dropped = (g < GROUPS)[:, None] & (s < SIZE)[None, :] & (kept_mask == 0)[:, None]
    return tl.where(dropped, _LOWEST, order)


@triton.jit(do_not_specialize=["logits_row"])
def _route(
    logits, logits_row: tl.int64, correction, experts, weights, scale,
    TOP_K: tl.constexpr, PADDED_K: tl.constexpr, GROUPS: tl.constexpr, SIZE: tl.constexpr,
    PADDED_GROUPS: tl.constexpr, PADDED_SIZE: tl.constexpr, KEPT: tl.constexpr, SIGMOID: tl.constexpr,
    RENORMALISE: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """Grid (rows,): TOP_K passes over the scores of a row, each of which finds the first of the greatest."""
    row = tl.program_id(0).to(tl.int64)
    PADDED: tl.constexpr = PADDED_GROUPS * PADDED_SIZE
    row_logits = logits + row * (logits_row * UNIT)
    place = tl.arange(0, PADDED)
    group, member = place // PADDED_SIZE, place % PADDED_SIZE
    expert = group * SIZE + member
    valid = (group < GROUPS) & (member < SIZE)
    logit = tl.load(row_logits + expert, mask=valid, other=float("-inf"))
    score = logit
    if SIGMOID:
        score = _sigmoid(logit)
    if correction is not None:
        score += tl.load(correction + expert, mask=valid, other=0.0)
    order = tl.where(valid, _order_of(score), _GONE)
    if GROUPS > 1:
        by_group = tl.reshape(order, [PADDED_GROUPS, PADDED_SIZE])
        by_group = _drop_groups(by_group, GROUPS, SIZE, PADDED_GROUPS, PADDED_SIZE, KEPT)
        order = tl.reshape(by_group, [PADDED])

    j = tl.arange(0, PADDED_K)
    chosen = tl.zeros([PADDED_K], tl.int32)
    for turn in range(TOP_K):
        best = _first_of_the_greatest(order, place, PADDED)
        chosen = tl.where(j == turn, best // PADDED_SIZE * SIZE + best % PADDED_SIZE, chosen)
        order = tl.where(place == best, _GONE, order)

    in_top_k = j < TOP_K
    # The logits of the row are in the cache.
    weight = tl.load(row_logits + chosen, mask=in_top_k, other=float("-inf"))
    if SIGMOID:
        weight = _sigmoid(weight)
        if RENORMALISE:
            weight = weight / (tl.sum(weight, 0) + _LEAST_SUM)
    else:
        # The first one is the greatest, or NaN.
        top = tl.sum(tl.where(j == 0, weight, 0.0), 0)
        weight = tl.exp(tl.where(in_top_k, weight - top, float("-inf")))
        if RENORMALISE:
            weight = weight / tl.sum(weight, 0)
        else:
            weight = weight / tl.sum(tl.exp(tl.where(valid, logit - top, float("-inf"))), 0)
    targets = row * TOP_K + j
    tl.store(experts + targets, chosen, mask=in_top_k)
    tl.store(weights + targets, weight * scale, mask=in_top_k)
