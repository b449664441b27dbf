"""Strides as multiples of a number that is known when a kernel is compiled: so it loads 128 bits at once."""

from collections.abc import Sequence

MOST_UNIT = 16
"""Elements: 128 bits of the narrowest type, and more."""


def stride_unit(strides: Sequence[int]) -> int:
    """The largest power of two, at most MOST_UNIT, that divides every one of the strides (in elements).

    A kernel takes `stride // unit` at run time and `unit` as a constant: strides themselves are not
    specialised, so their divisibility would be unknown, and every load as narrow as one element.
    """
    unit = MOST_UNIT
    for stride in strides:
        while stride % unit:
            unit //= 2
    return unit
