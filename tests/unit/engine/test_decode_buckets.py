"""Numbers of rows that decode steps are prepared for."""

from hypothesis import given
from hypothesis import strategies as st

from mamba_server.engine.execution.decode_steps import decode_buckets


@given(st.integers(1, 1024))
def test_every_number_of_sequences_has_rows_and_few_of_them_are_padding(most: int) -> None:
    sizes = decode_buckets(most)
    assert list(sizes) == sorted(set(sizes))
    assert sizes[-1] == most
    assert len(sizes) <= 40
    for below, size in zip((0, *sizes), sizes, strict=False):
        waste = size - (below + 1)
        assert waste < max(8, size / 3)
