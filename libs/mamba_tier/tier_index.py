"""`TierIndex`: the records and blocks of one tier, their costs, and the order in which records are evicted.

A record is a state with the last pages of its prefix; the other pages are in blocks, which records share.
Only records are evicted: a block is freed together with the last record that refers to it, so that no tier
keeps pages without a state. The priority of a record is the index's clock at the last use of the record, plus
the tokens of recomputation that each of its bytes saves, multiplied by the number of its hits plus one. The
clock is the priority of the last evicted record, so unused records lose in comparison. The index reads no
stored bytes; the lock of the store protects it.
"""

import heapq
from abc import ABC, abstractmethod
from itertools import count

from mamba_tier.items import Item, Record, let_go
from mamba_tier.outcomes import TierState, TierStatus


class TierIndex(ABC):
    """Finds the records and blocks of one tier, and chooses which to evict.

    A subclass stores their bytes and frees them. What it finds takes at most `budget_bytes`.
    """

    def __init__(self, name: str, budget_bytes: int) -> None:
        self.name = name
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self.evictions = 0
        """Number of records that were evicted to make room for others."""
        self.records: dict[int, Record] = {}
        self.blocks: dict[int, Item] = {}
        self.reason = ""
        """Reason why the tier is off; empty while it is on."""
        self._clock = 0.0
        self._heap: list[tuple[float, int, Record]] = []
        self._numbers = count()

    @property
    def on(self) -> bool:
        """Whether the tier stores and returns bundles."""
        return not self.reason

    def add_block(self, block: Item) -> None:
        """Add a block. The caller holds at least one reference to it."""
        other = self.blocks.get(block.key)
        if other is not None:
            other.gone = True
        self.blocks[block.key] = block
        self.used_bytes += block.cost

    def add_record(self, record: Record) -> None:
        """Add a record, which holds references to its blocks already."""
        other = self.records.get(record.key)
        if other is not None:
            self.drop(other)
        record.references += 1
        self.records[record.key] = record
        self.used_bytes += record.cost
        self._push(record)

    def touch(self, record: Record) -> None:
        """Count a use of the record, which raises its priority."""
        record.hits += 1
        self._push(record)

    def drop(self, item: Item) -> None:
        """Remove an item from the index. Its bytes remain until nothing refers to it."""
        if item.gone:
            return
        item.gone = True
        if isinstance(item, Record):
            del self.records[item.key]
            let_go(item)
        else:
            del self.blocks[item.key]

    def victim(self) -> Record | None:
        """Return the record that is evicted next; None = there is none, or readers use all of them."""
        aside = []
        chosen = None
        while self._heap and chosen is None:
            entry = heapq.heappop(self._heap)
            record = entry[2]
            if record.gone or record.priority != entry[0]:
                continue
            aside.append(entry)
            if record.references == 1:
                chosen = record
                self._clock = max(self._clock, record.priority)
        # The victim's entry is put back as well, because the caller may decide not to evict it.
        for entry in aside:
            heapq.heappush(self._heap, entry)
        return chosen

    def best(self) -> Record | None:
        """Return the record that would be evicted last, of those that nobody reads; None = there is none."""
        unread = (record for record in self.records.values() if record.references == 1)
        return max(unread, key=lambda record: record.priority, default=None)

    def make_room(self, count: int) -> bool:
        """Evict records until `count` more bytes fit into the budget. Return False if they cannot.

        They cannot if they exceed the whole budget, or if the records that are left are being read.
        """
        if count > self.budget_bytes:
            return False
        while self.used_bytes + count > self.budget_bytes:
            record = self.victim()
            if record is None:
                return False
            self.drop(record)
            self.evictions += 1
        return True

    def forget(self, item: Item) -> None:
        """Free the bytes of an item without references, and subtract its cost from the used bytes."""
        self.used_bytes -= item.cost
        if not item.gone and not isinstance(item, Record):
            item.gone = True
            del self.blocks[item.key]
        self._free(item)

    def clear(self) -> None:
        """Remove all records and blocks from the index."""
        for item in (*self.records.values(), *self.blocks.values()):
            self.drop(item)

    def status(self) -> TierStatus:
        """Return the contents and the state of the tier."""
        state = TierState.ON if self.on else TierState.OFF
        return TierStatus(
            state, self.reason, self.used_bytes, self.budget_bytes, len(self.records), self.evictions
        )

    def _push(self, record: Record) -> None:
        record.priority = self._clock + (1 + record.hits) * record.tokens / max(1, record.cost)
        heapq.heappush(self._heap, (record.priority, next(self._numbers), record))
        if len(self._heap) > 4 * len(self.records) + 64:
            current = (entry for entry in self._heap if not entry[2].gone)
            self._heap = [entry for entry in current if entry[0] == entry[2].priority]
            heapq.heapify(self._heap)

    @abstractmethod
    def _free(self, item: Item) -> None:
        """Free the memory of `item`, or remove its file."""
