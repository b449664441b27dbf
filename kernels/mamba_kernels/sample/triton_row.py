# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Passes over a row by a single program, for rows that the sums of the tiles do not decide."""

import triton
import triton.language as tl

from mamba_kernels.sample.triton_noise import noise_of

EVEN_PASSES = tl.constexpr(3)
"""Passes of a search whose candidate orders are evenly spaced as distances."""
FAR_DISTANCE = tl.constexpr(32.0)
"""Distance from the best logit, over the temperature: a token there has 2e-14 of the best probability."""
INFINITE = tl.constexpr(0x7F800000)
"""Bits of infinity: as integers, non-negative floats have the order of their values."""


@triton.jit
def usable(value):
    """Return logits for comparison, in which NaN and plus infinity are minus infinity."""
    return tl.where((value == value) & (value < float("inf")), value, float("-inf"))


@triton.jit
def scaled_logits(value, best, temperature):
    """Return logits relative to the best one, over the temperature: at most 0, minus infinity for NaN."""
    return (usable(value) - best) / temperature


@triton.jit
def order_of(scaled):
    """Return the order of tokens, likelier first: the bits of the distance from the best logit."""
    return tl.abs(scaled).to(tl.int32, bitcast=True)


@triton.jit
def _kth(
    row_logits, best, temperature, target, low, high, below, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Search for the order of the `target`-th likeliest token from `low` to `high`.

    `below` tokens come before `low`. Each pass tries eight orders at once. The orders of the first passes are
    evenly spaced as distances, which finds most thresholds; the orders of later passes are evenly spaced as
    bits, so that eleven more passes separate any two orders. The search ends as soon as a single token is
    left between the bounds.
    """
    inside = 2.0
    passes = 0
    j = tl.arange(0, 8)
    while (passes < EVEN_PASSES + 11) & (inside > 1.0):
        step = (high - low) // 8 + 1
        candidates = tl.minimum(low + (j + 1) * step - 1, high)
        near, far = low.to(tl.float32, bitcast=True), high.to(tl.float32, bitcast=True)
        if (passes < EVEN_PASSES) & (near < FAR_DISTANCE):
            # The last order is the upper bound.
            width = tl.where(far > FAR_DISTANCE, (FAR_DISTANCE - near) / 7, (far - near) / 8)
            evenly_spaced = (near + width * (j + 1).to(tl.float32)).to(tl.int32, bitcast=True)
            candidates = tl.where(j == 7, high, tl.minimum(evenly_spaced, high))
        numbers = tl.zeros([8, BLOCK], tl.float32)
        for start in range(0, VOCABULARY, BLOCK):
            token = start + tl.arange(0, BLOCK)
            valid = token < VOCABULARY
            value = tl.load(row_logits + token, mask=valid, other=float("-inf"))
            order = order_of(scaled_logits(value, best, temperature))
            numbers += ((order[None, :] <= candidates[:, None]) & valid[None, :]).to(tl.float32)
        number = tl.sum(numbers, 1)
        first_enough = tl.minimum(tl.sum((number < target).to(tl.int32), 0), 7)
        # Tokens up to the previous bound are not between the two bounds.
        below = tl.maximum(below, tl.max(tl.where(j < first_enough, number, 0.0), 0))
        inside = tl.sum(tl.where(j == first_enough, number, 0.0), 0) - below
        low = tl.minimum(tl.maximum(low, tl.max(tl.where(j < first_enough, candidates + 1, 0), 0)), high)
        high = tl.sum(tl.where(j == first_enough, candidates, 0), 0)
        passes += 1
    return high


@triton.jit
def weight_of_the_best(
    row_logits, best, temperature, least, k, low, high, below,
    VOCABULARY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the weight of the `k` likeliest tokens and those equal to the last, if `min_p` allows them."""
    last = _kth(row_logits, best, temperature, k, low, high, below, VOCABULARY, BLOCK)
    weights = tl.zeros([BLOCK], tl.float32)
    for start in range(0, VOCABULARY, BLOCK):
        token = start + tl.arange(0, BLOCK)
        value = tl.load(row_logits + token, mask=token < VOCABULARY, other=float("-inf"))
        scaled = scaled_logits(value, best, temperature)
        weights += tl.where((order_of(scaled) <= last) & (scaled >= least), tl.exp(scaled), 0.0)
    return tl.sum(weights, 0)


@triton.jit
def check_row(
    row_logits, best, temperature, least, chosen, words, positions, row,
    VOCABULARY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Check another choice as `check_kernel` does: return number, weight and best of the likelier tokens."""
    limit = usable(tl.load(row_logits + chosen))
    numbers, weights = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    greatest = tl.full([BLOCK], float("-inf"), tl.float32)
    places = tl.zeros([BLOCK], tl.int32)
    for start in range(0, VOCABULARY, BLOCK):
        token = start + tl.arange(0, BLOCK)
        value = tl.load(row_logits + token, mask=token < VOCABULARY, other=float("-inf"))
        scaled = scaled_logits(value, best, temperature)
        likelier = (scaled >= least) & (usable(value) > limit)
        numbers += likelier.to(tl.float32)
        weights += tl.where(likelier, tl.exp(scaled), 0.0)
        noisy = tl.where(likelier, scaled + noise_of(token, words, positions, row), float("-inf"))
        places = tl.where(noisy > greatest, token, places)
        greatest = tl.maximum(noisy, greatest)
    lane = tl.argmax(greatest, 0)
    following = tl.sum(tl.where(tl.arange(0, BLOCK) == lane, places, 0), 0)
    return tl.sum(numbers, 0), tl.sum(weights, 0), following
