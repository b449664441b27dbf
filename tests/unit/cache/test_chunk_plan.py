"""Chunk boundaries: absolute, forced at checkpoints, the same however a prompt is split."""

from hypothesis import given
from hypothesis import strategies as st

from mamba_server.cache.placement import aligned_piece, chunk_ends

DEPTHS = st.integers(0, 2000)
CHUNKS = st.sampled_from([16, 64, 128])


@given(DEPTHS, st.integers(1, 500), CHUNKS, st.lists(DEPTHS, max_size=5))
def test_boundaries_are_absolute_multiples_checkpoints_and_the_end(
    start: int, length: int, chunk: int, forced: list[int]
) -> None:
    stop = start + length
    ends = chunk_ends(start, stop, chunk, forced)
    inside = {depth for depth in forced if start < depth <= stop}
    wanted = {d for d in range(start + 1, stop) if d % chunk == 0} | inside | {stop}
    assert ends == sorted(wanted)
    lengths = [end - begin for begin, end in zip([start, *ends], ends, strict=False)]
    assert all(0 < length <= chunk for length in lengths)


@given(DEPTHS, st.integers(1, 500), CHUNKS, st.lists(DEPTHS, max_size=5), st.data())
def test_a_split_on_the_grid_makes_no_boundary_of_its_own(
    start: int, length: int, chunk: int, forced: list[int], data: st.DataObject
) -> None:
    stop = start + length
    whole = chunk_ends(start, stop, chunk, forced)
    cut = data.draw(st.sampled_from(whole))
    if cut < stop:
        assert chunk_ends(start, cut, chunk, forced) + chunk_ends(cut, stop, chunk, forced) == whole


def test_a_continued_prefill_first_completes_its_chunk() -> None:
    assert chunk_ends(10, 40, 16) == [16, 32, 40]
    assert chunk_ends(16, 32, 16) == [32]
    assert chunk_ends(0, 5, 16, [3, 9]) == [3, 5]


@given(DEPTHS, st.integers(1, 3000), st.integers(0, 600), CHUNKS)
def test_a_piece_ends_on_the_grid_or_ends_the_prompt(
    start: int, remaining: int, budget: int, grain: int
) -> None:
    take = aligned_piece(start, remaining, budget, grain)
    assert 0 <= take <= min(remaining, budget)
    assert not take or take == remaining or (start + take) % grain == 0


@given(DEPTHS, st.integers(1, 3000), CHUNKS)
def test_a_budget_of_one_chunk_always_makes_progress(start: int, remaining: int, grain: int) -> None:
    assert aligned_piece(start, remaining, grain, grain) > 0
