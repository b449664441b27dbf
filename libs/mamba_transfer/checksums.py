"""Checksums (xxh3, 64 bits) of sub-blocks, computed as the bytes are sent or received.

Source and destination each compute them over their own memory, so that a byte that was damaged on the way, or
written to a wrong place, is noticed. Each piece is added while it is still in the processor's cache.
"""

from collections.abc import Iterable, Sequence

import xxhash


def checksum(buffers: Iterable[memoryview | bytes]) -> int:
    """Return the checksum of all bytes of `buffers`, one after the other."""
    digest = xxhash.xxh3_64()
    for buffer in buffers:
        digest.update(buffer)
    return digest.intdigest()


class BlockChecksums:
    """Checksums of consecutive sub-blocks of known sizes, whose bytes arrive in pieces of any size."""

    def __init__(self, sizes: Sequence[int]) -> None:
        """Prepare to receive sub-blocks one after the other; `sizes` are their sizes in bytes."""
        self._digests = bytearray()
        self._sizes = iter(sizes)
        self._left = next(self._sizes, 0)
        self._current = xxhash.xxh3_64()

    @property
    def digests(self) -> bytes:
        """Checksums of the sub-blocks that are complete: 8 bytes each, little-endian, as they are sent."""
        return bytes(self._digests)

    def update(self, piece: memoryview) -> None:
        """Add the next bytes of the stream to the checksum of the sub-block that they belong to."""
        start, length = 0, piece.nbytes
        while start < length:
            stop = min(length, start + self._left)
            self._current.update(piece if stop - start == length else piece[start:stop])
            self._left -= stop - start
            start = stop
            if not self._left:
                self._digests += self._current.intdigest().to_bytes(8, "little")
                self._current.reset()
                self._left = next(self._sizes, length)
