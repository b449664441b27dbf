"""The table of a gateway's copy: which engines have a checkpoint under a hash, as one bit an engine.

Open addressing over two arrays, 16 bytes a place, and in front of them one bit for each of some hashes: most
pages of a long prompt have no checkpoint, and what says so is small enough for a core's own cache. A hash
whose last engine is gone keeps its place, empty, until the table is laid out anew. That goes on beside the
work: each change takes some places along, and until all are there both layouts are looked at.
"""

import contextlib
import mmap

import numpy as np
import numpy.typing as npt

from mamba_prefix.page_chain import Hashes

Bits = npt.NDArray[np.uint64]
MOST_ENGINES = 64
SMALLEST = 1 << 10
FULL = 0.7
"""Share of places in use, empty ones included, at which the table is laid out anew."""
STEP = 4096
"""Places of the old layout that a change takes along, besides `STEPS_A_HASH` for each hash that it adds."""
STEPS_A_HASH = 8
_ONE = np.uint64(1)
_NEAR, _FAR = np.arange(8), np.arange(8 * 8)
_BIT = (1 << np.arange(8)).astype(np.uint8)


def _empty_places(count: int) -> Hashes:
    """Zeros, uint64[count], which the machine makes 4 KiB at a time as they are touched. numpy asks for huge
    pages, and the first change in a new layout, which touches them all, would wait for all of them."""
    area = mmap.mmap(-1, 8 * count)
    with contextlib.suppress(AttributeError, OSError):
        area.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(area, np.uint64)


class PrefixTable:
    """Hashes and their engines, engines as numbers below 64.

    `most`: entries beyond it are not taken; `smallest`: places to begin with, a power of two.
    """

    few = 256
    """Hashes, up to which looking at their places takes less than to ask the sieve first."""

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
        self._old_keys: Hashes = np.zeros(0, np.uint64)
        self._old_bits: Bits = np.zeros(0, np.uint64)
        """The layout before, while some of it is not taken along yet; else empty. A hash has bits in one of
        the two."""
        self._old_sieve: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)
        self._taken = 0
        """Places of it that are."""
        self._left = 0
        """Hashes in it that are not."""

    @property
    def bytes(self) -> int:
        """What the arrays take."""
        arrays = (
            self._keys, self._bits, self._sieve, self._old_keys, self._old_bits, self._old_sieve
        )  # fmt: skip
        return sum(each.nbytes for each in arrays)

    def depths(self, hashes: Hashes) -> dict[int, int]:
        """For each engine that has any of `hashes`: how many of them lead up to the last one that it has."""
        perhaps = self._perhaps(hashes) if len(hashes) > self.few else None
        if perhaps is not None:
            hashes = hashes[perhaps]
        rows, bits = self._found(self._keys, self._bits, hashes)
        if len(self._old_keys):
            old_rows, old_bits = self._found(self._old_keys, self._old_bits, hashes)
            rows, bits = np.concatenate((rows, old_rows)), np.concatenate((bits, old_bits))
            order = rows.argsort(kind="stable")
            rows, bits = rows[order], bits[order]
        if perhaps is not None:
            rows = perhaps[rows]
        out: dict[int, int] = {}
        seen = 0
        # The deepest first.
        for row, engines in zip(rows.tolist()[::-1], bits.tolist()[::-1], strict=True):
            new = engines & ~seen
            seen |= engines
            while new:
                lowest = new & -new
                out[lowest.bit_length() - 1] = row + 1
                new ^= lowest
        return out

    def _perhaps(self, hashes: Hashes) -> npt.NDArray[np.int64]:
        """Places in `hashes` of those that the sieves do not rule out."""
        byte, bit = self._in_sieve(self._sieve, hashes)
        maybe = (self._sieve[byte] & bit) != 0
        if len(self._old_keys):
            byte, bit = self._in_sieve(self._old_sieve, hashes)
            maybe |= (self._old_sieve[byte] & bit) != 0
        there: npt.NDArray[np.int64] = maybe.nonzero()[0]
        return there

    @staticmethod
    def _found(keys: Hashes, bits: Bits, hashes: Hashes) -> tuple[npt.NDArray[np.int64], Bits]:
        """Places in `hashes`, rising, of those that are there, and their bits."""
        mask, which, window = np.int64(len(keys) - 1), None, _NEAR
        at = (hashes & np.uint64(len(keys) - 1)).view(np.int64)
        out_rows, out_places = [], []
        while True:
            # Eight neighbours at once: they lie in one or two lines of the processor's cache.
            near = np.add(at[:, None], window)
            near &= mask
            there = keys[near]
            hit = there == hashes[:, None]
            flat = hit.ravel().nonzero()[0]
            rows = flat // len(window)
            out_places.append(near.ravel()[flat])
            out_rows.append(rows if which is None else which[rows])
            # Eight answers are one number: where none is yes and no place is free, the search goes on.
            hit |= there == 0
            words = hit.view(np.uint64)
            left = (words[:, 0] == 0 if window is _NEAR else ~words.any(axis=1)).nonzero()[0]
            if not len(left):
                break
            at, hashes = at[left] + len(window), hashes[left]
            which = left if which is None else which[left]
            # Few are left, and one of them may be far on: each time around takes as long as the first.
            window = _FAR
        if len(out_rows) == 1:
            return out_rows[0], bits[out_places[0]]
        rows, places = np.concatenate(out_rows), np.concatenate(out_places)
        order = rows.argsort(kind="stable")
        return rows[order], bits[places[order]]

    def add(self, engine: int, hashes: Hashes) -> int:
        """`engine` has these (none twice in `hashes`). Returns how many of them there was no room for."""
        if len(self._old_keys):
            self._take_along(self._old_places(hashes))
        at = self._find(self._keys, hashes)
        placed = self._keys[at] == hashes
        alive = placed & (self._bits[at] != 0)
        # Those that others have already need no room.
        new = hashes[~alive]
        refused = max(0, len(new) - max(0, self.most - self.entries))
        new = new[: len(new) - refused]
        self._mark(engine, at[alive])
        if self._used + self._left + len(new) > FULL * len(self._keys):
            self._lay_out(self.entries + len(new))
        self._sift(new)
        self._mark(engine, self._claim(new))
        self.entries += len(new)
        self._step(STEP + STEPS_A_HASH * len(new))
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
        if len(self._old_keys):
            self._take_along(self._old_places(hashes))
        at = self._find(self._keys, hashes)
        at = at[self._keys[at] == hashes]
        before = self._bits[at]
        after = before & ~(_ONE << np.uint64(engine))
        self._bits[at] = after
        self._counts[engine] -= int(np.count_nonzero(before != after))
        self.entries -= int(np.count_nonzero((before != 0) & (after == 0)))
        self._step(STEP)

    def clear(self, engine: int) -> None:
        """`engine` has nothing any more."""
        if not self._counts[engine]:
            return
        self._counts[engine] = 0
        self.entries -= self._clear(self._bits, engine)
        gone = self._clear(self._old_bits, engine)
        self.entries -= gone
        self._left -= gone
        self._step(STEP)

    @staticmethod
    def _clear(bits: Bits, engine: int) -> int:
        """How many hashes nobody has any more."""
        had = bits & (_ONE << np.uint64(engine)) != 0
        bits[had] &= ~(_ONE << np.uint64(engine))
        return int(np.count_nonzero(bits[had] == 0))

    def of(self, engine: int) -> Hashes:
        """What `engine` has, in no order."""
        bit = _ONE << np.uint64(engine)
        return np.concatenate((self._keys[self._bits & bit != 0], self._old_keys[self._old_bits & bit != 0]))

    def count(self, engine: int) -> int:
        """How many `engine` has."""
        return self._counts[engine]

    def _lay_out(self, wanted: int) -> None:
        """Begin a new layout with room for `wanted` entries and as many again."""
        # Each hash that is added takes more along than it brings, so there is hardly ever anything left.
        self._step(len(self._old_keys))
        size = self._smallest
        while wanted * 2 > size:
            size *= 2
        self._old_keys, self._old_bits, self._old_sieve = self._keys, self._bits, self._sieve
        self._taken, self._left = 0, int(np.count_nonzero(self._bits))
        self._keys, self._bits = _empty_places(size), _empty_places(size)
        self._sieve = np.zeros(size // 2, np.uint8)
        self._used = 0

    def _step(self, places: int) -> None:
        """Take so many places of the old layout along; with the last one it is gone."""
        if not len(self._old_keys):
            return
        until = min(len(self._old_keys), self._taken + places)
        self._take_along(np.arange(self._taken, until))
        self._taken = until
        if until == len(self._old_keys):
            self._old_keys, self._old_bits = np.zeros(0, np.uint64), np.zeros(0, np.uint64)
            self._old_sieve = np.zeros(0, np.uint8)

    def _take_along(self, at: npt.NDArray[np.int64]) -> None:
        """Put what stands at these places of the old layout into the new one."""
        at = at[self._old_bits[at] != 0]
        hashes = self._old_keys[at]
        # Its key keeps its place: others are found behind it.
        self._bits[self._claim(hashes)] = self._old_bits[at]
        self._old_bits[at] = 0
        self._left -= len(at)
        self._sift(hashes)

    def _old_places(self, hashes: Hashes) -> npt.NDArray[np.int64]:
        at = self._find(self._old_keys, hashes)
        found: npt.NDArray[np.int64] = at[self._old_keys[at] == hashes]
        return found

    def _sift(self, hashes: Hashes) -> None:
        byte, bit = self._in_sieve(self._sieve, hashes)
        np.bitwise_or.at(self._sieve, byte, bit)

    @staticmethod
    def _in_sieve(
        sieve: npt.NDArray[np.uint8], hashes: Hashes
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
        places = len(sieve) * 8
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
            near = (at[left, None] + 1 + _NEAR) & (len(keys) - 1)
            there = keys[near]
            ends = (there == hashes[left, None]) | (there == 0)
            which = ends.argmax(axis=1)
            rows = np.arange(len(left))
            at[left] = near[rows, which]
            going = ~ends[rows, which]
            at[left[going]] = near[going, -1]
            left = left[going]
        return at
