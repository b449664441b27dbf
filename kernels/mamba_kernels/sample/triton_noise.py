# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The noise of `noise.py` inside a Triton kernel: a function of (seed, position, token), bit for bit."""

import triton
import triton.language as tl


@triton.jit
def _mix(x):
    """Apply the finalizer of MurmurHash3 to uint32, as `noise._mix` does."""
    x ^= x >> 16
    x *= 0x85EBCA6B
    x ^= x >> 13
    x *= 0xC2B2AE35
    x ^= x >> 16
    return x


@triton.jit
def _minus_log(u, complement):
    """Compute -log(u) of 0 < u < 1 without a hardware logarithm near 1, where it has no correct digit."""
    v = complement
    series = v * (1.0 + v * (1.0 / 2 + v * (1.0 / 3 + v * (1.0 / 4 + v * (1.0 / 5)))))
    return tl.where(v < 1.0 / 32, series, -tl.log(u))


@triton.jit
def _gumbel(token, first, second):
    """Compute standard Gumbel noise of tokens for the mixed words of a row, as `noise.gumbel` does."""
    bits = _mix((_mix(token.to(tl.uint32) * 0x9E3779B9) ^ first) + second)
    whole = (bits >> 9).to(tl.float32)
    exponential = _minus_log((whole + 0.5) * (1.0 / 8388608), (8388607.5 - whole) * (1.0 / 8388608))
    return -tl.log(exponential)


@triton.jit
def noise_of(token, words, positions, row):
    """Compute the noise of tokens of a row from its seed and its position."""
    # A single lane rather than a scalar, so that products wrap.
    lane = tl.arange(0, 1)
    position = tl.load(positions + row + lane).to(tl.uint32, bitcast=True)
    first = _mix(tl.load(words + 2 * row + lane).to(tl.uint32, bitcast=True) ^ (position * 0x9E3779B9))
    second = _mix(tl.load(words + 2 * row + 1 + lane).to(tl.uint32, bitcast=True) + first)
    return _gumbel(token, first, second)
