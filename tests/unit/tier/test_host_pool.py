"""Memory of the pool is given to one item at a time, and all of it comes back."""

from hypothesis import given, settings
from hypothesis import strategies as st

from mamba_tier.host_pool import GRAIN, HostPool, Pieces


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 6 * GRAIN)), max_size=60))
@settings(max_examples=60)
def test_pieces_never_overlap_and_all_come_back(steps: list[tuple[bool, int]]) -> None:
    pool = HostPool(24 * GRAIN)
    taken: list[tuple[Pieces, int]] = []
    for take, number in steps:
        if take:
            pieces = pool.take(number)
            assert (pieces is None) == (-(-number // GRAIN) * GRAIN > pool.free_bytes + _size(pieces))
            if pieces is not None:
                taken.append((pieces, number))
                assert sum(view.nbytes for view in pool.views(pieces, number)) == number
        elif taken:
            pool.give_back(taken.pop(number % len(taken))[0])
        held = [each for pieces, _ in taken for each in pieces]
        assert sum(length for _, length in held) + pool.free_bytes == pool.capacity
        grains = [grain for start, length in held for grain in range(start, start + length, GRAIN)]
        assert len(set(grains)) == len(grains)
    for pieces, _ in taken:
        pool.give_back(pieces)
    # Neighbours are joined again.
    assert pool._free == [(0, pool.capacity)]


def _size(pieces: Pieces | None) -> int:
    return sum(length for _, length in pieces or ())
