"""Strides as multiples of a compile-time constant, so that kernels load 128 bits at once."""

from collections.abc import Sequence

MOST_UNIT = 16
"""Largest unit in elements: 128 bits of the narrowest type, and more."""


def stride_unit(strides: Sequence[int]) -> int:
    """Return the largest power of two, at most MOST_UNIT, that divides all strides (in elements).

    A kernel takes `stride // unit` at run time and `unit` as a constant: strides are not specialised, so
    without the unit their divisibility would be unknown and every load as narrow as one element.
    """
    unit = MOST_UNIT
    for stride in strides:
        while stride % unit:
            unit //= 2
    return unit
