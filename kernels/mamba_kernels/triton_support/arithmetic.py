# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Small arithmetic of launches and of kernels."""

import triton
import triton.language as tl

LOG2_E = 1.4426950408889634
LOG2_E_CONSTANT = tl.constexpr(LOG2_E)
"""LOG2_E inside a kernel: decays are kept as powers of two, whose exponential is one instruction."""


def ceil_div(extent: int, block: int) -> int:
    return -(-extent // block)


def block_of(extent: int, *, least: int = 1, most: int | None = None) -> int:
    """Return the smallest power of two that covers `extent`, within bounds that are powers of two."""
    block = max(least, 1 << max(0, extent - 1).bit_length())
    return block if most is None else min(block, most)


@triton.jit
def extent_at(slot, extent):
    """Return `extent` for a slot, and 0 for slot -1: the bound of a mask that excludes absent slots.

    It is a bound, since the interpreter cannot combine a mask with a scalar condition.
    """
    return tl.where(slot >= 0, extent, 0)


@triton.jit
def stochastic(x, head, p, n, noise, P: tl.constexpr, N: tl.constexpr):
    """Round float32 numbers to ones that float16 has, as `stochastic_rounding` does, operation by operation.

    `x` are the rows `p` and columns `n` of a head's state; `noise` is the word of the state.
    """
    # Rows and columns are multiplied separately: their products stay in few registers inside a loop.
    row = ((head * P + p) * N).to(tl.uint32) * 0x9E3779B9
    column = n.to(tl.uint32) * 0x9E3779B9
    random = (row[:, None] + column[None, :]) ^ noise.to(tl.uint32, bitcast=True)
    random ^= random >> 16
    random *= 0x85EBCA6B
    random ^= random >> 13
    random *= 0xC2B2AE35
    random ^= random >> 16
    size = tl.abs(x)
    bits = size.to(tl.uint32, bitcast=True)
    carried = tl.minimum((bits + (random >> 19)) & 0xFFFFE000, 0x477FE000).to(tl.float32, bitcast=True)
    steps = size * 16777216.0
    whole = tl.floor(steps)
    threshold = ((random >> 9).to(tl.float32) + 0.5) * (1.0 / 8388608)
    tiny = (whole + tl.where(steps - whole > threshold, 1.0, 0.0)) * (1.0 / 16777216)
    out = tl.where(bits < 0x38800000, tiny, carried)
    out = tl.where(bits >= 0x477FF000, size, out).to(tl.uint32, bitcast=True)
    return (out | (x.to(tl.uint32, bitcast=True) & 0x80000000)).to(tl.float32, bitcast=True)


@triton.jit
def as_stored(s, state, head, p, n, noise, P: tl.constexpr, N: tl.constexpr):
    """Convert float32 registers (rows `p` and columns `n` of a head) to the type of the states.

    float16 states are rounded stochastically with the word that `noise` points to.
    """
    if state.dtype.element_ty == tl.float16:
        s = stochastic(s, head, p, n, tl.load(noise), P, N)
    return s.to(state.dtype.element_ty)


@triton.jit
def softplus(x):
    """Compute log(1 + exp(x)) of float32 without overflow, as max(x, 0) + log(1 + exp(-|x|)).

    A small exponential e would be rounded away in 1 + e, so the series e - e^2/2 + e^3/3 replaces it.
    """
    e = tl.exp(-tl.abs(x))
    small = e * (1.0 - e * (0.5 - e * (1.0 / 3.0)))
    return tl.maximum(x, 0.0) + tl.where(e < 1e-2, small, tl.log(1.0 + e))
