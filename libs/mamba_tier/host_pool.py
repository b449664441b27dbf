"""`HostPool`: one anonymous mapping, given out in whole pages of memory. An item may lie in several pieces.

The store's lock protects the list of free pieces; bytes are read and written without it.
"""

import mmap
from bisect import bisect_left

GRAIN = 4096
Pieces = tuple[tuple[int, int], ...]
"""Start and length of each piece in bytes, in the order of the item's bytes."""


def rounded(count: int) -> int:
    """Return the bytes that an item of `count` bytes takes."""
    return -(-count // GRAIN) * GRAIN


class HostPool:
    """Memory for items, reserved at once and touched by the first item that lies there."""

    def __init__(self, capacity: int) -> None:
        self.capacity = max(GRAIN, rounded(capacity))
        self.free_bytes = self.capacity
        self._memory = mmap.mmap(-1, self.capacity, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._view = memoryview(self._memory)
        self._free: list[tuple[int, int]] = [(0, self.capacity)]

    def take(self, count: int) -> Pieces | None:
        """Reserve memory for `count` bytes, from the lowest free addresses; None = too little is free."""
        wanted = rounded(count)
        if wanted > self.free_bytes:
            return None
        self.free_bytes -= wanted
        out = []
        while wanted:
            start, length = self._free[0]
            part = min(length, wanted)
            out.append((start, part))
            wanted -= part
            if part == length:
                del self._free[0]
            else:
                self._free[0] = (start + part, length - part)
        return tuple(out)

    def give_back(self, pieces: Pieces) -> None:
        """Return memory that was reserved."""
        for start, length in pieces:
            place = bisect_left(self._free, (start, 0))
            self.free_bytes += length
            if place < len(self._free) and start + length == self._free[place][0]:
                length += self._free.pop(place)[1]
            if place and sum(self._free[place - 1]) == start:
                start, before = self._free[place - 1]
                self._free[place - 1] = (start, before + length)
            else:
                self._free.insert(place, (start, length))

    def views(self, pieces: Pieces, count: int) -> list[memoryview]:
        """Return the first `count` bytes of an item."""
        out = []
        for start, length in pieces:
            part = min(length, count)
            out.append(self._view[start : start + part])
            count -= part
        return out
