"""`HostTier`: the tier in host memory, and the staging memory of bundles that wait for the writer."""

from collections.abc import Iterable
from typing import cast

from mamba_tier.byte_row import ByteRow, checksum, copy
from mamba_tier.host_pool import HostPool, Pieces
from mamba_tier.items import Item, Record
from mamba_tier.landing import Target
from mamba_tier.record_header import unpacked
from mamba_tier.tier_index import TierIndex


class HostTier(TierIndex):
    """Bundles in one pool of memory. The pool is larger than the budget, by the staging memory."""

    def __init__(self, budget_bytes: int, staging_bytes: int) -> None:
        super().__init__("host", budget_bytes)
        self.pool = HostPool(budget_bytes + staging_bytes)

    def take_all(self, sizes: list[int]) -> list[Pieces] | None:
        """Reserve memory for items of these sizes; None = for not all of them."""
        out: list[Pieces] = []
        for size in sizes:
            pieces = self.pool.take(size)
            if pieces is None:
                for reserved in out:
                    self.pool.give_back(reserved)
                return None
            out.append(pieces)
        return out

    def give_back(self, items: Iterable[Item]) -> None:
        """Return the memory of items that are in no index."""
        for item in items:
            self._free(item)

    def block(self, key: int, digest: bytes, first: int, depth: int, place: Pieces) -> Item:
        """Return a block of pages that lies at `place`, which no index has yet."""
        return Item(self, key, digest, first, depth, _size(place), place)

    def record(
        self, key: int, digest: bytes, first: int, depth: int, place: Pieces, block_keys: tuple[int, ...]
    ) -> Record:
        """Return a record that lies at `place`, which no index has yet."""
        return Record(self, key, digest, first, depth, _size(place), place, block_keys=block_keys)

    def views(self, item: Item, count: int) -> list[memoryview]:
        """Return the first `count` bytes of an item."""
        return self.pool.views(cast("Pieces", item.place), count)

    def read(self, item: Item, targets: list[Target], total: int) -> bool:
        """Copy parts of an item of `total` bytes into their landing buffers; False = a part is damaged."""
        row, sums = ByteRow(self.views(item, total)), unpacked(item.sums)
        for part, buffers in targets:
            copy(row.cut(part.start, part.length), buffers)
            # The landed bytes are verified, not those that were copied.
            if checksum(buffers) != sums[part.number]:
                return False
        return True

    def _free(self, item: Item) -> None:
        self.pool.give_back(cast("Pieces", item.place))


def _size(place: Pieces) -> int:
    return sum(length for _, length in place)
