# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Code of Triton kernels that makes ordinary numbers of weights of four bits, in registers, and multiplies.

`triton` and the mixture of experts call `accumulate` in their kernels. A byte holds one input of the first
half of a run and one of the second, so both halves are products of their own and no number changes places.
The weights are the first operand: four warps multiply it out of registers, and sixteen rows fill a tile.
"""

import triton
import triton.language as tl

from mamba_kernels.four_bit.matrix import RUN, Code

FORM = {Code.INTEGER: 1, Code.INTEGER_ZEROS: 2, Code.NVFP4: 3, Code.MXFP4: 4}
"""Value of the constant FORM of kernels for each code of a matrix."""
PLAIN = 0
"""Value of FORM for ordinary weights, in kernels that multiply by either."""
_ZEROS, _NVFP4, _MXFP4 = tl.constexpr(2), tl.constexpr(3), tl.constexpr(4)
_RUN, _HALF = tl.constexpr(RUN), tl.constexpr(RUN // 2)


@triton.jit
def _scale(scales, places, mask, FORM: tl.constexpr):
    """Return scales as float32, times 2^14 for floating point codes."""
    raw = tl.load(scales + places, mask=mask, other=0)
    if FORM == _NVFP4:
        # e4m3 has the bits of a float16 that is 2^8 times smaller.
        bits = raw.to(tl.uint16)
        half = (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True)
        scale = half.to(tl.float32) * 4194304.0
    elif FORM == _MXFP4:
        scale = (raw.to(tl.uint32) << 23).to(tl.float32, bitcast=True) * 16384.0
    else:
        scale = raw.to(tl.float32)
    return scale


@triton.jit
def _spread(values, BLOCK_N: tl.constexpr, RUNS: tl.constexpr):
    """Return values of runs [BLOCK_N, RUNS] for each byte of their codes."""
    shape: tl.constexpr = [BLOCK_N, RUNS, _HALF]
    return tl.reshape(tl.broadcast_to(values[:, :, None], shape), [BLOCK_N, RUNS * _HALF])


@triton.jit
def _weights(codes, scale, zero, FORM: tl.constexpr, BLOCK_N: tl.constexpr, RUNS: tl.constexpr, DOT):
    """Return the weights of codes [BLOCK_N, 16 RUNS], whose scales and zeros are [BLOCK_N, RUNS]."""
    if FORM >= _NVFP4:
        # e2m1 has the bits of a float16 that is 2^14 times smaller.
        bits = codes.to(tl.uint16)
        half = (((bits & 8) << 12) | ((bits & 7) << 9)).to(tl.float16, bitcast=True)
        value = half.to(tl.float32)
    elif FORM == _ZEROS:
        value = codes.to(tl.float32) - _spread(zero, BLOCK_N, RUNS)
    else:
        value = codes.to(tl.float32) - 8.0
    return (value * _spread(scale, BLOCK_N, RUNS)).to(DOT)


@triton.jit
def _tiles(
    codes, scales, zeros, feature, mask, first, last, width, groups, group,
    FORM: tl.constexpr, BLOCK_N: tl.constexpr, RUNS: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Return the weights of the outputs `feature` for both halves of RUNS runs from `first` on, up to `last`.

    `group` is the number of inputs that share a scale, and `groups` the number of scales of an output.
    """
    byte = first * _HALF + tl.arange(0, RUNS * _HALF)
    inside = mask[:, None] & (byte < last * _HALF)[None, :]
    raw = tl.load(codes + feature[:, None] * (width // 2) + byte[None, :], mask=inside, other=0)
    run = first + tl.arange(0, RUNS)
    of_runs = mask[:, None] & (run < last)[None, :]
    place = feature[:, None] * groups + (run * _RUN // group)[None, :]
    scale = _scale(scales, place, of_runs, FORM)
    zero = scale
    if FORM == _ZEROS:
        zero = tl.load(zeros + place, mask=of_runs, other=0).to(tl.float32)
    low = _weights(raw & 15, scale, zero, FORM, BLOCK_N, RUNS, DOT)
    if FORM == _NVFP4:
        # The halves of a run are two groups.
        scale = _scale(scales, place + 1, of_runs, FORM)
    high = _weights(raw >> 4, scale, zero, FORM, BLOCK_N, RUNS, DOT)
    return low, high


@triton.jit
def _inputs(x, row, valid, order, k, inside, DOT: tl.constexpr):
    """Return the inputs `k` of rows that begin at `row`: [inputs, rows].

    `order` holds the place in a row of x of each input of the matrix; None = the same order.
    """
    place = k
    if order is not None:
        place = tl.load(order + k, mask=inside, other=0)
    return tl.load(x + row[None, :] + place[:, None], mask=valid[None, :] & inside[:, None], other=0).to(DOT)


@triton.jit
def accumulate(
    x, row, valid, codes, scales, zeros, order, feature, mask, second_feature,
    first, last, width, groups, group,
    FORM: tl.constexpr, GATED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    RUNS: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Multiply the outputs `feature` of a matrix by rows of x, over the runs first..last: [BLOCK_N, BLOCK_M].

    If GATED, the second result is the product with the outputs `second_feature`. Both name outputs by int64
    numbers that count the outputs of all experts before.
    """
    total = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    second = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    j = tl.arange(0, RUNS * _HALF)
    for start in range(first, last, RUNS):
        byte = start * _HALF + j
        inside = byte < last * _HALF
        k = byte // _HALF * _RUN + byte % _HALF
        low_x = _inputs(x, row, valid, order, k, inside, DOT)
        high_x = _inputs(x, row, valid, order, k + _HALF, inside, DOT)
        low, high = _tiles(
            codes, scales, zeros, feature, mask, start, last, width, groups, group, FORM, BLOCK_N, RUNS, DOT
        )
        total = tl.dot(low, low_x, total, input_precision="tf32x3")
        total = tl.dot(high, high_x, total, input_precision="tf32x3")
        if GATED:
            low, high = _tiles(
                codes, scales, zeros, second_feature, mask, start, last, width, groups, group,
                FORM, BLOCK_N, RUNS, DOT,
            )  # fmt: skip
            second = tl.dot(low, low_x, second, input_precision="tf32x3")
            second = tl.dot(high, high_x, second, input_precision="tf32x3")
    return total, second
