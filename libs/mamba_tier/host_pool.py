"""`HostPool`: one anonymous memory mapping, of which items get whole memory pages, in one or more pieces.

Items are the records and blocks of pages of the host tier. A piece is a run of bytes of the mapping. The lock
of the store protects the list of free pieces, so the caller holds it; the bytes themselves are read and
written without it.
"""

import mmap
from bisect import bisect_left

GRAIN = 4096
TOUCH_BYTES = 4 << 20
"""Bytes of memory that one call makes the operating system allocate, which takes one to five milliseconds."""
LEAST_AHEAD_BYTES = 16 << 20
"""Bytes that are allocated before any item has come."""
AHEAD_ITEMS = 4
"""Items of the largest size so far for which memory is allocated in advance."""
_MADV_POPULATE_WRITE = 23
"""Advice to madvise(2) that allocates memory pages and keeps their content. The module `mmap` has no name for
the number."""
Pieces = tuple[tuple[int, int], ...]
"""Offset and length in bytes of each piece of an item's memory, in the order of the item's bytes."""


def rounded(count: int) -> int:
    """Return the bytes of memory that an item of `count` bytes takes: whole memory pages."""
    return -(-count // GRAIN) * GRAIN


class HostPool:
    """Hands out pieces of one large memory to items.

    Its memory pages are allocated step by step, when the writer calls `touch_more`. The mapping has
    `capacity` bytes.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = max(GRAIN, rounded(capacity))
        self.free_bytes = self.capacity
        self._memory = mmap.mmap(-1, self.capacity, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._touched = 0
        self._used = 0
        """End of the memory that items have ever had."""
        self._ahead = LEAST_AHEAD_BYTES
        self._view = memoryview(self._memory)
        self._free: list[tuple[int, int]] = [(0, self.capacity)]

    def touch_more(self) -> bool:
        """Allocate the next `TOUCH_BYTES` of the memory; return False once enough is allocated for now.

        Without this, the first put that uses a piece would wait until the operating system has cleared its
        memory. Memory far beyond what items have had costs as much, and may never be used.
        """
        enough = min(self.capacity, self._used + self._ahead)
        if self._touched < enough:
            try:
                step = min(TOUCH_BYTES, self.capacity - self._touched)
                self._memory.madvise(_MADV_POPULATE_WRITE, self._touched, step)
                self._touched += step
            except OSError:
                # On a kernel before 5.14, or with too little memory, pieces are allocated when they are used.
                self._touched = self.capacity
        return self._touched < enough

    def take(self, count: int) -> Pieces | None:
        """Reserve memory for `count` bytes at the lowest free offsets; None = not enough is free."""
        rest = rounded(count)
        if rest > self.free_bytes:
            return None
        self.free_bytes -= rest
        self._ahead = max(self._ahead, AHEAD_ITEMS * rest)
        out = []
        while rest:
            start, length = self._free[0]
            part = min(length, rest)
            out.append((start, part))
            rest -= part
            if part == length:
                del self._free[0]
            else:
                self._free[0] = (start + part, length - part)
            self._used = max(self._used, start + part)
        return tuple(out)

    def give_back(self, pieces: Pieces) -> None:
        """Mark the pieces that `take` reserved for an item as free again.

        The caller holds the store's lock.
        """
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
        """Return views of the first `count` bytes of the item that lies in `pieces`."""
        out = []
        for start, length in pieces:
            part = min(length, count)
            out.append(self._view[start : start + part])
            count -= part
        return out
