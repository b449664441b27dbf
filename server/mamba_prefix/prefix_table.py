"""The table of a gateway's copy: which engines have a checkpoint under a hash, as one bit an engine.

Open addressing over two arrays, 16 bytes a place, and in front of them one bit for each of some hashes: most
pages of a prompt have no checkpoint, and what says so is small enough for a core's own cache. A hash whose
last engine is gone keeps its place, empty, until the table is laid out anew.
"""

import numpy as np
import numpy.typing as npt

from mamba_prefix.page_chain import Hashes

Bits = npt.NDArray[np.uint64]
MOST_ENGINES = 64
SMALLEST = 1 << 10
FULL = 0.7
"""Share of places in use, empty ones included, at which the table is built anew."""
_ONE = np.uint64(1)
_NEAR = np.arange(1, 9)
_BIT = (1 << np.arange(8)).astype(np.uint8)


class PrefixTable:
    """Hashes and their engines, engines as numbers below 64.

    `most`: entries beyond it are not taken; `smallest`: places to begin with, a power of two.
    """

    def __init__(self, most: int = 1 << 20, smallest: int = SMALLEST) -> None:
        self.most = most
        self._smallest = smallest
        self.entries = 0
        """Hashes that an engine has."""
        self._counts = [0] * MOST_ENGINES
        self._used = 0
        """Places taken, by hashes that no engine has any more too."""
        self._keys: Hashes = np.zeros(smallest, np.uint64)
        self._bits: Bits = np.zeros(smallest, np.uint64)
        self._sieve: npt.NDArray[np.uint8] = np.zeros(smallest // 2, np.uint8)
        """A bit for each hash that was ever added since the last layout, by its upper bits; four a place."""

    @property
    def bytes(self) -> int:
        """What the arrays take."""
        return self._keys.nbytes + self._bits.nbytes + self._sieve.nbytes

    def depths(self, hashes: Hashes) -> dict[int, int]:
        """For each engine that has any of `hashes`: how many of them lead up to the last one that it has."""
        byte, bit = self._in_sieve(hashes)
        perhaps = np.flatnonzero((self._sieve[byte] & bit) != 0)
        hashes = hashes[perhaps]
        at = self._find(self._keys, hashes)
        found = self._bits[at]
        found[self._keys[at] != hashes] = 0
        there = np.flatnonzero(found)[::-1]
        if not len(there):
            return {}
        seen = np.bitwise_or.accumulate(found[there])
        first = np.flatnonzero(np.concatenate(([True], seen[1:] != seen[:-1])))
        out: dict[int, int] = {}
        before = 0
        pages = perhaps[there[first]] + 1
        for now, page in zip(seen[first].tolist(), pages.tolist(), strict=True):
            new = now & ~before
            while new:
                lowest = new & -new
                out[lowest.bit_length() - 1] = page
                new ^= lowest
            before = now
        return out

    def add(self, engine: int, hashes: Hashes) -> int:
        """`engine` has these (none twice in `hashes`). Returns how many of them there was no room for."""
        at = self._find(self._keys, hashes)
        placed = self._keys[at] == hashes
        alive = placed & (self._bits[at] != 0)
        # Those that others have already need no room.
        new = hashes[~alive]
        refused = max(0, len(new) - max(0, self.most - self.entries))
        new = new[: len(new) - refused]
        self._mark(engine, at[alive])
        if self._used + len(new) > FULL * len(self._keys):
            self._build(self.entries + len(new))
        self._sift(new)
        self._mark(engine, self._claim(new))
        self.entries += len(new)
        return refused

    def _mark(self, engine: int, at: npt.NDArray[np.int64]) -> None:
        bit = _ONE << np.uint64(engine)
        before = self._bits[at]
        self._counts[engine] += int(np.count_nonzero(before & bit == 0))
        self._bits[at] = before | bit

    def _claim(self, hashes: Hashes) -> npt.NDArray[np.int64]:
        """The place of each, its own from now on."""
        keys, at, left = self._keys, self._start(self._keys, hashes), hashes
        out = np.empty(len(hashes), np.int64)
        which = np.arange(len(hashes))
        while len(left):
            free = keys[at] == 0
            # Of several that want one place the last one written gets it, and the others go on.
            keys[at[free]] = left[free]
            mine = keys[at] == left
            self._used += int(np.count_nonzero(free & mine))
            out[which[mine]] = at[mine]
            rest = ~mine
            at, left, which = (at[rest] + 1) & (len(keys) - 1), left[rest], which[rest]
        return out

    def remove(self, engine: int, hashes: Hashes) -> None:
        """`engine` has these no more (none twice in `hashes`)."""
        at = self._find(self._keys, hashes)
        at = at[self._keys[at] == hashes]
        before = self._bits[at]
        after = before & ~(_ONE << np.uint64(engine))
        self._bits[at] = after
        self._counts[engine] -= int(np.count_nonzero(before != after))
        self.entries -= int(np.count_nonzero((before != 0) & (after == 0)))

    def clear(self, engine: int) -> None:
        """`engine` has nothing any more."""
        if not self._counts[engine]:
            return
        self._counts[engine] = 0
        had = self._bits & (_ONE << np.uint64(engine)) != 0
        self._bits[had] &= ~(_ONE << np.uint64(engine))
        self.entries -= int(np.count_nonzero(self._bits[had] == 0))

    def of(self, engine: int) -> Hashes:
        """What `engine` has, in no order."""
        keys: Hashes = self._keys[self._bits & (_ONE << np.uint64(engine)) != 0]
        return keys

    def count(self, engine: int) -> int:
        """How many `engine` has."""
        return self._counts[engine]

    def _build(self, wanted: int) -> None:
        """Lay out anew what engines have, with room for `wanted` entries and as many again."""
        size = self._smallest
        while wanted * 2 > size:
            size *= 2
        alive = self._bits != 0
        hashes, bits = self._keys[alive], self._bits[alive]
        self._keys, self._bits = np.zeros(size, np.uint64), np.zeros(size, np.uint64)
        self._used = 0
        self._bits[self._claim(hashes)] = bits
        self._sieve = np.zeros(size // 2, np.uint8)
        self._sift(hashes)

    def _sift(self, hashes: Hashes) -> None:
        byte, bit = self._in_sieve(hashes)
        np.bitwise_or.at(self._sieve, byte, bit)

    def _in_sieve(self, hashes: Hashes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
        places = len(self._sieve) * 8
        upper = (hashes >> np.uint64(65 - places.bit_length())).view(np.int64)
        return upper >> 3, _BIT[upper & 7]

    @staticmethod
    def _start(keys: Hashes, hashes: Hashes) -> npt.NDArray[np.int64]:
        return (hashes & np.uint64(len(keys) - 1)).view(np.int64)

    def _find(self, keys: Hashes, hashes: Hashes) -> npt.NDArray[np.int64]:
        """Where each hash is, or the free place where it would be."""
        at = self._start(keys, hashes)
        there = keys[at]
        left = np.flatnonzero((there != hashes) & (there != 0))
        while len(left):
            # Some neighbours at once: they lie in one line of the processor's cache.
            near = (at[left, None] + _NEAR) & (len(keys) - 1)
            there = keys[near]
            ends = (there == hashes[left, None]) | (there == 0)
            which = ends.argmax(axis=1)
            rows = np.arange(len(left))
            at[left] = near[rows, which]
            going = ~ends[rows, which]
            at[left[going]] = near[going, -1]
            left = left[going]
        return at
