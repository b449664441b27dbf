"""Checksums of sub-blocks: the same however the stream is cut, and different for every changed bit."""

import itertools
import random
import struct

from hypothesis import given
from hypothesis import strategies as st

from mamba_transfer import BlockChecksums, checksum


def digests(stream: bytes, sizes: list[int], cuts: list[int]) -> list[int]:
    checksums = BlockChecksums(sizes)
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    for start, stop in itertools.pairwise(edges):
        checksums.update(memoryview(stream)[start:stop])
    return list(struct.unpack(f"<{len(sizes)}Q", checksums.digests))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.lists(st.integers(0, 400)), st.integers(0, 9))
def test_checksums_do_not_depend_on_the_cuts_of_the_stream(
    sizes: list[int], cuts: list[int], seed: int
) -> None:
    stream = random.Random(seed).randbytes(sum(sizes))
    expected = []
    start = 0
    for size in sizes:
        expected.append(checksum([stream[start : start + size]]))
        start += size
    assert digests(stream, sizes, cuts) == expected


def test_each_flipped_bit_changes_the_checksum_of_its_own_block_alone() -> None:
    sizes = [40, 24]
    stream = random.Random(1).randbytes(64)
    before = digests(stream, sizes, [])
    for bit in range(8 * len(stream)):
        changed = bytearray(stream)
        changed[bit // 8] ^= 1 << bit % 8
        after = digests(bytes(changed), sizes, [])
        assert [old != new for old, new in zip(before, after, strict=True)] == [bit < 320, bit >= 320]
