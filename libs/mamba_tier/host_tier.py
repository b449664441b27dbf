"""`HostTier`: the tier in host memory. Its pool also holds the bundles that wait for the writer.

The writer is the thread that stores bundles (`StoreWriter`). What a tier stores are items: records, each a
state with its last pages, and blocks of pages, which records share.
"""

from collections.abc import Iterable
from typing import cast

from mamba_tier.byte_row import ByteRow, checksum, copy
from mamba_tier.host_pool import HostPool, Pieces
from mamba_tier.items import Item, Record
from mamba_tier.landing import Target
from mamba_tier.record_header import unpacked
from mamba_tier.tier_index import TierIndex


class HostTier(TierIndex):
    """The tier in host memory: its records and blocks of pages lie in one pool.

    The pool has `budget_bytes` for what is stored, and `staging_bytes` for bundles that wait to be stored.
    """

    def __init__(self, budget_bytes: int, staging_bytes: int) -> None:
        super().__init__("host", budget_bytes)
        self.pool = HostPool(budget_bytes + staging_bytes)

    def take_all(self, sizes: list[int]) -> list[Pieces] | None:
        """Reserve memory for one item of each size; None = there is not enough for all of them."""
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
        """Free the memory of items that will be in no index, since their bundle was dropped."""
        for item in items:
            self._free(item)

    def block(self, key: int, digest: bytes, first: int, depth: int, place: Pieces) -> Item:
        """Return an item for a block of pages whose bytes lie at `place`; the caller adds it to the index.

        The other parameters are the fields of `Item`.
        """
        return Item(self, key, digest, first, depth, _size(place), place)

    def record(
        self, key: int, digest: bytes, first: int, depth: int, place: Pieces, block_keys: tuple[int, ...]
    ) -> Record:
        """Return a record whose bytes lie at `place`; the caller adds it to the index.

        The other parameters are the fields of `Record`.
        """
        return Record(self, key, digest, first, depth, _size(place), place, block_keys=block_keys)

    def views(self, item: Item, count: int) -> list[memoryview]:
        """Return views of the first `count` bytes of an item."""
        return self.pool.views(cast("Pieces", item.place), count)

    def read(self, item: Item, targets: list[Target], total: int) -> bool:
        """Copy parts of an item of `total` bytes to landing buffers; return False if a part is damaged."""
        row, sums = ByteRow(self.views(item, total)), unpacked(item.sums)
        for part, buffers in targets:
            copy(row.cut(part.start, part.length), buffers)
            # The copy in the landing buffers is verified, so that an error of the copy is noticed too.
            if checksum(buffers) != sums[part.number]:
                return False
        return True

    def _free(self, item: Item) -> None:
        self.pool.give_back(cast("Pieces", item.place))


def _size(place: Pieces) -> int:
    return sum(length for _, length in place)
