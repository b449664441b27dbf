"""`ByteRow`: several buffers addressed as one continuous row of bytes; copies and checksums of such rows."""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import xxhash

Buffers = Sequence[memoryview]


class ByteRow:
    """Addresses several buffers as if they were one continuous row of bytes."""

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = [_flat(buffer) for buffer in buffers if buffer.nbytes]
        self._starts = [0]
        for buffer in self._buffers:
            self._starts.append(self._starts[-1] + buffer.nbytes)

    def __len__(self) -> int:
        return self._starts[-1]

    def cut(self, start: int, length: int) -> list[memoryview]:
        """Return views of the bytes [start, start + length), one for each buffer that they lie in."""
        out = []
        place = bisect_right(self._starts, start) - 1
        while length > 0:
            inside = start - self._starts[place]
            piece = self._buffers[place][inside : inside + length]
            out.append(piece)
            start += piece.nbytes
            length -= piece.nbytes
            place += 1
        return out


def _flat(buffer: memoryview) -> memoryview:
    return buffer if buffer.format == "B" and buffer.ndim == 1 else buffer.cast("B")


def copy(sources: Buffers, targets: Buffers) -> None:
    """Copy `sources` to `targets`, which have the same size in total. Other Python threads run meanwhile."""
    source, target = ByteRow(sources), ByteRow(targets)
    assert len(source) == len(target)
    start = 0
    while start < len(source):
        # The longest run of bytes that lies in one buffer of the sources and in one of the targets.
        piece = source.cut(start, len(source) - start)[0]
        place = target.cut(start, piece.nbytes)[0]
        np.copyto(np.frombuffer(place, np.uint8), np.frombuffer(piece[: place.nbytes], np.uint8))
        start += place.nbytes


def checksum(buffers: Buffers) -> int:
    """Return the 64-bit XXH3 checksum of the buffers' bytes, as if they were one buffer."""
    if len(buffers) == 1:
        return xxhash.xxh3_64_intdigest(buffers[0])
    state = xxhash.xxh3_64()
    for buffer in buffers:
        state.update(buffer)
    return state.intdigest()
