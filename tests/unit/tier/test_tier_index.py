"""Which records go first: those that save little for their bytes, and those that nobody used for long."""

from mamba_tier.items import Item, Record, let_go
from mamba_tier.tier_index import TierIndex


class Shelf(TierIndex):
    """An index whose bytes are a list of what was freed."""

    def __init__(self, budget: int) -> None:
        super().__init__("shelf", budget)
        self.freed: list[int] = []

    def _free(self, item: Item) -> None:
        self.freed.append(item.key)


def add(shelf: Shelf, key: int, saved: int, cost: int = 10, blocks: tuple[Item, ...] = ()) -> Record:
    assert shelf.make_room(cost)
    record = Record(shelf, key, b"", 0, saved, cost, None, tokens=saved, blocks=list(blocks))
    for block in blocks:
        block.references += 1
    shelf.add_record(record)
    return record


def block(shelf: Shelf, key: int, cost: int = 10) -> Item:
    item = Item(shelf, key, b"", 0, 16, cost, None)
    shelf.add_block(item)
    return item


def test_the_record_that_saves_least_goes_first() -> None:
    shelf = Shelf(30)
    for key, saved in enumerate([300, 100, 200, 400]):
        add(shelf, key, saved)
    assert shelf.freed == [1]
    assert shelf.evictions == 1


def test_of_equal_records_the_older_goes_first() -> None:
    shelf = Shelf(30)
    for key in range(5):
        add(shelf, key, 100)
    assert shelf.freed == [0, 1]


def test_a_record_that_was_used_stays_longer() -> None:
    shelf = Shelf(30)
    first = add(shelf, 0, 100)
    add(shelf, 1, 100)
    shelf.touch(first)
    for key in range(2, 5):
        add(shelf, key, 100)
    assert 0 not in shelf.freed


def test_a_record_that_nobody_uses_any_more_goes_in_the_end() -> None:
    shelf = Shelf(30)
    valuable = add(shelf, 0, 300)
    for _ in range(3):
        shelf.touch(valuable)
    for key in range(1, 100):
        add(shelf, key, 100)
    assert 0 in shelf.freed


def test_tokens_count_for_each_byte() -> None:
    shelf = Shelf(100)
    add(shelf, 0, 300, cost=80)
    add(shelf, 1, 100, cost=10)
    add(shelf, 2, 100, cost=20)
    assert shelf.freed == [0]


def test_a_block_goes_with_its_last_record() -> None:
    shelf = Shelf(1000)
    shared = block(shelf, 7)
    first, second = add(shelf, 1, 100, blocks=(shared,)), add(shelf, 2, 100, blocks=(shared,))
    shelf.drop(first)
    assert (shelf.freed, shelf.used_bytes) == ([1], 20)
    shelf.drop(second)
    assert (shelf.freed, shelf.used_bytes, shelf.blocks) == ([1, 2, 7], 0, {})


def test_a_record_that_is_read_is_no_victim_and_keeps_its_bytes() -> None:
    shelf = Shelf(20)
    read = add(shelf, 0, 1)
    read.references += 1
    add(shelf, 1, 100)
    add(shelf, 2, 100)
    assert shelf.freed == [1]
    assert shelf.records[0] is read
    shelf.drop(read)
    assert (shelf.freed, shelf.used_bytes) == ([1], 20)
    let_go(read)
    assert (shelf.freed, shelf.used_bytes) == ([1, 0], 10)


def test_what_never_fits_evicts_nothing() -> None:
    shelf = Shelf(30)
    add(shelf, 0, 100)
    assert not shelf.make_room(31)
    assert shelf.freed == []


def test_the_heap_does_not_grow_with_uses() -> None:
    shelf = Shelf(100)
    record = add(shelf, 0, 100)
    for _ in range(10_000):
        shelf.touch(record)
    assert len(shelf._heap) < 100
    assert shelf.victim() is record
