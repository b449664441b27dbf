"""Memory of the host tier is allocated before it is needed, and not long before."""

from itertools import takewhile

import pytest

from mamba_tier.host_pool import AHEAD_ITEMS, LEAST_AHEAD_BYTES, TOUCH_BYTES, HostPool

MIB = 1 << 20


def touched(pool: HostPool) -> int:
    """Return the bytes that are allocated until the pool has enough."""
    return TOUCH_BYTES * (1 + sum(1 for _ in takewhile(bool, iter(pool.touch_more, None))))


def test_memory_is_allocated_ahead_of_items_and_no_further() -> None:
    pool = HostPool(256 * MIB)
    allocated = touched(pool)
    if allocated == TOUCH_BYTES:
        pytest.skip("this kernel allocates memory when it is used")
    assert allocated == LEAST_AHEAD_BYTES
    # Room for so many more items of that size follows.
    assert pool.take(8 * MIB) is not None
    assert allocated + touched(pool) == (1 + AHEAD_ITEMS) * 8 * MIB
    # Memory that comes back is used again, and needs no other.
    assert pool.take(4 * MIB) is not None
    pool.give_back(((0, 12 * MIB),))
    assert touched(pool) == TOUCH_BYTES
    assert pool.take(12 * MIB) == ((0, 12 * MIB),)
