"""The table of a gateway's copy: which engines have a checkpoint under a hash, as one bit an engine.

The table uses open addressing over two arrays, 16 bytes for each place. A sieve, which has one bit for each
hash, is searched first: most pages of a long prompt have no checkpoint, and the sieve that rules them out
fits a core's own cache. A hash that no engine has any more keeps its place, empty, until the table gets a new
layout. Moving to the new layout is spread over the changes: each change moves some places, and until all are
moved both layouts are searched.
"""

import contextlib
import mmap

import numpy as np
import numpy.typing as npt

from mamba_prefix.page_chain import Hashes

Bits = npt.NDArray[np.uint64]
ENGINES_PER_TABLE = 64
MIN_PLACES = 1 << 10
LOAD_LIMIT = 0.7
"""Share of places in use, empty ones included, at which the table gets a new layout."""
STEP = 4096
"""Places of the old layout that a change moves, in addition to `STEPS_A_HASH` for each hash that it adds."""
STEPS_A_HASH = 8
_ONE = np.uint64(1)
_NEAR, _FAR = np.arange(8), np.arange(8 * 8)
_BIT = (1 << np.arange(8)).astype(np.uint8)


def _empty_places(count: int) -> Hashes:
    """Return zeros, uint64[count], whose memory the machine allocates 4 KiB at a time as it is used.

    numpy requests huge pages, and the first change in a new layout, which uses them all, would wait for
    all of them.
    """
    area = mmap.mmap(-1, 8 * count)
    with contextlib.suppress(AttributeError, OSError):
        area.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(area, np.uint64)


class PrefixTable:
    """The hashes of prefixes, each with the engines that have it. Engines are numbers below 64.

    `most` is the largest number of entries, and `smallest` the number of places at the start, a power of two.
    A place is the storage of one hash.
    """

    few = 256
    """Number of hashes up to which searching their places is faster than searching the sieve first."""

    def __init__(self, most: int = 1 << 20, smallest: int = MIN_PLACES) -> None:
        self.most = most
        self._smallest = smallest
        self.entries = 0
        """Number of hashes that at least one engine has."""
        self._counts = [0] * ENGINES_PER_TABLE
        self._used = 0
        """Number of places in use, including the places of hashes that all engines have lost."""
        self._keys: Hashes = np.zeros(smallest, np.uint64)
        self._bits: Bits = np.zeros(smallest, np.uint64)
        self._sieve: npt.NDArray[np.uint8] = np.zeros(smallest // 2, np.uint8)
        """The sieve: one bit for each hash that was added since the last layout, by its upper bits; four bits
        a place."""
        self._old_keys: Hashes = np.zeros(0, np.uint64)
        self._old_bits: Bits = np.zeros(0, np.uint64)
        """The previous layout, until all of it is moved; else empty. A hash has bits in one of the two
        layouts."""
        self._old_sieve: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)
        self._moved = 0
        """Number of places of the old layout that were moved."""
        self._left = 0
        """Number of hashes in the old layout that are still to be moved."""

    @property
    def bytes(self) -> int:
        """Size of all arrays in bytes."""
        arrays = (
            self._keys, self._bits, self._sieve, self._old_keys, self._old_bits, self._old_sieve
        )  # fmt: skip
        return sum(array.nbytes for array in arrays)

    def depths(self, hashes: Hashes) -> dict[int, int]:
        """Return, for each engine that has any of `hashes`, the position after the last one it has."""
        candidates = self._candidates(hashes) if len(hashes) > self.few else None
        if candidates is not None:
            hashes = hashes[candidates]
        rows, bits = self._lookup(self._keys, self._bits, hashes)
        if len(self._old_keys):
            old_rows, old_bits = self._lookup(self._old_keys, self._old_bits, hashes)
            rows, bits = np.concatenate((rows, old_rows)), np.concatenate((bits, old_bits))
            order = rows.argsort(kind="stable")
            rows, bits = rows[order], bits[order]
        if candidates is not None:
            rows = candidates[rows]
        out: dict[int, int] = {}
        seen = 0
        # The deepest hash first.
        for row, engines in zip(rows.tolist()[::-1], bits.tolist()[::-1], strict=True):
            new = engines & ~seen
            seen |= engines
            while new:
                lowest = new & -new
                out[lowest.bit_length() - 1] = row + 1
                new ^= lowest
        return out

    def _candidates(self, hashes: Hashes) -> npt.NDArray[np.int64]:
        """Return the positions in `hashes` of the hashes that may be in the table, by the sieves."""
        byte, bit = self._in_sieve(self._sieve, hashes)
        maybe = (self._sieve[byte] & bit) != 0
        if len(self._old_keys):
            byte, bit = self._in_sieve(self._old_sieve, hashes)
            maybe |= (self._old_sieve[byte] & bit) != 0
        candidates: npt.NDArray[np.int64] = maybe.nonzero()[0]
        return candidates

    @staticmethod
    def _lookup(keys: Hashes, bits: Bits, hashes: Hashes) -> tuple[npt.NDArray[np.int64], Bits]:
        """Return the positions of the `hashes` that the table has, ascending, and their engines as bits."""
        mask, which, window = np.int64(len(keys) - 1), None, _NEAR
        places = (hashes & np.uint64(len(keys) - 1)).view(np.int64)
        out_rows, out_places = [], []
        while True:
            # Eight neighbours at once: they are in one or two lines of the processor's cache.
            near = np.add(places[:, None], window)
            near &= mask
            near_keys = keys[near]
            hit = near_keys == hashes[:, None]
            flat = hit.ravel().nonzero()[0]
            rows = flat // len(window)
            out_places.append(near.ravel()[flat])
            out_rows.append(rows if which is None else which[rows])
            # Eight answers are one number: the search continues where no place matches and none is free.
            hit |= near_keys == 0
            words = hit.view(np.uint64)
            left = (words[:, 0] == 0 if window is _NEAR else ~words.any(axis=1)).nonzero()[0]
            if not len(left):
                break
            places, hashes = places[left] + len(window), hashes[left]
            which = left if which is None else which[left]
            # Few hashes are left, and one may be far away: each iteration takes as long as the first.
            window = _FAR
        if len(out_rows) == 1:
            return out_rows[0], bits[out_places[0]]
        rows, places = np.concatenate(out_rows), np.concatenate(out_places)
        order = rows.argsort(kind="stable")
        return rows[order], bits[places[order]]

    def add(self, engine: int, hashes: Hashes) -> int:
        """Add hashes of `engine`, without duplicates, and return how many did not fit."""
        if len(self._old_keys):
            self._move(self._old_places(hashes))
        places = self._find(self._keys, hashes)
        placed = self._keys[places] == hashes
        alive = placed & (self._bits[places] != 0)
        # Hashes that other engines have already need no room.
        new = hashes[~alive]
        refused = max(0, len(new) - max(0, self.most - self.entries))
        new = new[: len(new) - refused]
        self._mark(engine, places[alive])
        if self._used + self._left + len(new) > LOAD_LIMIT * len(self._keys):
            self._lay_out(self.entries + len(new))
        self._add_to_sieve(new)
        self._mark(engine, self._claim(new))
        self.entries += len(new)
        self._advance(STEP + STEPS_A_HASH * len(new))
        return refused

    def _mark(self, engine: int, places: npt.NDArray[np.int64]) -> None:
        bit = _ONE << np.uint64(engine)
        before = self._bits[places]
        self._counts[engine] += int(np.count_nonzero(before & bit == 0))
        self._bits[places] = before | bit

    def _claim(self, hashes: Hashes) -> npt.NDArray[np.int64]:
        """Return a place for each hash, and put the hash there."""
        keys, places, left = self._keys, self._start(self._keys, hashes), hashes
        out = np.empty(len(hashes), np.int64)
        positions = np.arange(len(hashes))
        while len(left):
            free = keys[places] == 0
            # Of several hashes for one place, the last one written gets it, and the others continue.
            keys[places[free]] = left[free]
            mine = keys[places] == left
            self._used += int(np.count_nonzero(free & mine))
            out[positions[mine]] = places[mine]
            rest = ~mine
            places, left, positions = (places[rest] + 1) & (len(keys) - 1), left[rest], positions[rest]
        return out

    def remove(self, engine: int, hashes: Hashes) -> None:
        """Remove hashes, without duplicates, of `engine`."""
        if len(self._old_keys):
            self._move(self._old_places(hashes))
        places = self._find(self._keys, hashes)
        places = places[self._keys[places] == hashes]
        before = self._bits[places]
        after = before & ~(_ONE << np.uint64(engine))
        self._bits[places] = after
        self._counts[engine] -= int(np.count_nonzero(before != after))
        self.entries -= int(np.count_nonzero((before != 0) & (after == 0)))
        self._advance(STEP)

    def clear(self, engine: int) -> None:
        """Remove all hashes of `engine`."""
        if not self._counts[engine]:
            return
        self._counts[engine] = 0
        self.entries -= self._clear(self._bits, engine)
        orphans = self._clear(self._old_bits, engine)
        self.entries -= orphans
        self._left -= orphans
        self._advance(STEP)

    @staticmethod
    def _clear(bits: Bits, engine: int) -> int:
        """Remove `engine` from the entries `bits`, and return the number of hashes that it alone had."""
        owned = bits & (_ONE << np.uint64(engine)) != 0
        bits[owned] &= ~(_ONE << np.uint64(engine))
        return int(np.count_nonzero(bits[owned] == 0))

    def of(self, engine: int) -> Hashes:
        """Return the hashes of `engine`, in no order."""
        bit = _ONE << np.uint64(engine)
        return np.concatenate((self._keys[self._bits & bit != 0], self._old_keys[self._old_bits & bit != 0]))

    def count(self, engine: int) -> int:
        """Return the number of hashes of `engine`."""
        return self._counts[engine]

    def _lay_out(self, entries: int) -> None:
        """Begin a new layout, which has room for twice `entries`."""
        # Each added hash moves more places than it takes, so little of the old layout is left.
        self._advance(len(self._old_keys))
        size = self._smallest
        while entries * 2 > size:
            size *= 2
        self._old_keys, self._old_bits, self._old_sieve = self._keys, self._bits, self._sieve
        self._moved, self._left = 0, int(np.count_nonzero(self._bits))
        self._keys, self._bits = _empty_places(size), _empty_places(size)
        self._sieve = np.zeros(size // 2, np.uint8)
        self._used = 0

    def _advance(self, places: int) -> None:
        """Move `places` places of the old layout, and drop the layout with its last place."""
        if not len(self._old_keys):
            return
        until = min(len(self._old_keys), self._moved + places)
        self._move(np.arange(self._moved, until))
        self._moved = until
        if until == len(self._old_keys):
            self._old_keys, self._old_bits = np.zeros(0, np.uint64), np.zeros(0, np.uint64)
            self._old_sieve = np.zeros(0, np.uint8)

    def _move(self, places: npt.NDArray[np.int64]) -> None:
        """Move the hashes at these places of the old layout into the new one."""
        places = places[self._old_bits[places] != 0]
        hashes = self._old_keys[places]
        # The key keeps its old place, so that hashes behind it are still found.
        self._bits[self._claim(hashes)] = self._old_bits[places]
        self._old_bits[places] = 0
        self._left -= len(places)
        self._add_to_sieve(hashes)

    def _old_places(self, hashes: Hashes) -> npt.NDArray[np.int64]:
        places = self._find(self._old_keys, hashes)
        live_places: npt.NDArray[np.int64] = places[self._old_keys[places] == hashes]
        return live_places

    def _add_to_sieve(self, hashes: Hashes) -> None:
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
        """Return the place of each hash, or the free place where it would be."""
        places = self._start(keys, hashes)
        keys_at = keys[places]
        left = np.flatnonzero((keys_at != hashes) & (keys_at != 0))
        while len(left):
            near = (places[left, None] + 1 + _NEAR) & (len(keys) - 1)
            keys_at = keys[near]
            ends = (keys_at == hashes[left, None]) | (keys_at == 0)
            first_end = ends.argmax(axis=1)
            rows = np.arange(len(left))
            places[left] = near[rows, first_end]
            going = ~ends[rows, first_end]
            places[left[going]] = near[going, -1]
            left = left[going]
        return places
