"""The table says what a dictionary of sets would say, in a fraction of its memory."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mamba_prefix.prefix_table import PrefixTable

ENGINES = st.sampled_from([0, 1, 2, 63])
# Neighbours in the table, far apart and at its last place.
HASHES = st.one_of(
    st.integers(1, 12),
    st.integers(1, 5).map(lambda each: each << 40 | 15),
    st.integers(1, 2**64 - 1),
)
SETS = st.lists(HASHES, unique=True, max_size=30)


def array(hashes: list[int]) -> np.ndarray:
    return np.array(hashes, np.uint64)


class TableAndModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = PrefixTable(smallest=16)
        self.model: dict[int, set[int]] = {}

    @rule(engine=ENGINES, hashes=SETS)
    def add(self, engine: int, hashes: list[int]) -> None:
        assert self.table.add(engine, array(hashes)) == 0
        for each in hashes:
            self.model.setdefault(each, set()).add(engine)

    @rule(engine=ENGINES, hashes=SETS)
    def remove(self, engine: int, hashes: list[int]) -> None:
        self.table.remove(engine, array(hashes))
        for each in hashes:
            self.model.get(each, set()).discard(engine)

    @rule(engine=ENGINES)
    def clear(self, engine: int) -> None:
        self.table.clear(engine)
        for engines in self.model.values():
            engines.discard(engine)

    @rule(hashes=SETS)
    def look_at_any(self, hashes: list[int]) -> None:
        self.look(hashes)

    def look(self, hashes: list[int]) -> None:
        expected: dict[int, int] = {}
        for index, each in enumerate(hashes):
            for engine in self.model.get(each, ()):
                expected[engine] = index + 1
        assert self.table.depths(array(hashes)) == expected

    @rule()
    def look_at_all(self) -> None:
        self.look(sorted(self.model))

    @rule(engine=ENGINES)
    def list_one(self, engine: int) -> None:
        has = {each for each, engines in self.model.items() if engine in engines}
        assert set(self.table.of(engine).tolist()) == has
        assert self.table.count(engine) == len(has)

    @invariant()
    def counts(self) -> None:
        assert self.table.entries == sum(1 for engines in self.model.values() if engines)


TestTableAndModel = TableAndModel.TestCase
TestTableAndModel.settings = settings(max_examples=25, stateful_step_count=30)


class SlowTableAndModel(TableAndModel):
    """A new layout is begun often and takes long: most of what happens, happens in the middle of one."""

    def __init__(self) -> None:
        super().__init__()
        self.table = SlowTable(smallest=16)


class SlowTable(PrefixTable):
    few = 0  # the sieve is asked for each

    def _advance(self, places: int) -> None:
        super()._advance(places if places == len(self._old_keys) else 1)


TestSlowTableAndModel = SlowTableAndModel.TestCase
TestSlowTableAndModel.settings = settings(max_examples=15, stateful_step_count=30)


def random_hashes(count: int, seed: int = 0) -> np.ndarray:
    return np.unique(np.random.default_rng(seed).integers(1, 1 << 63, count, np.uint64))


def test_an_entry_takes_less_than_fifty_bytes_when_the_table_is_large() -> None:
    table = PrefixTable(1 << 21)
    hashes = random_hashes(100_000)
    for engine in range(4):
        table.add(engine, hashes)
    assert table.entries == len(hashes)
    # A power of two of places, 16.5 bytes each, between 35 % and 70 % of them taken.
    assert 16.5 / 0.7 <= table.bytes / table.entries <= 48


def test_no_change_moves_the_whole_table() -> None:
    """A gateway's loop stands still for the longest change: none may cost as many places as there are."""
    moved: list[int] = []

    class Watched(PrefixTable):
        def _move(self, places: np.ndarray) -> None:
            moved.append(len(places))
            super()._move(places)

    table = Watched(1 << 21)
    hashes = random_hashes(100_000)
    for at in range(0, len(hashes), 500):
        table.add(at // 500 % 64, hashes[at : at + 500])
    assert table.entries == len(hashes)
    assert max(moved) < 10_000
    assert sum(moved) > len(hashes)


def test_a_layout_that_shrinks_has_room_for_what_comes_while_it_is_taken_along() -> None:
    table = SlowTable(1 << 21)
    many = random_hashes(60_000)
    table.add(0, many)
    table.remove(0, many[300:])
    hashes = random_hashes(30_000, 1)
    for at in range(0, len(hashes), 100):
        table.add(1, hashes[at : at + 100])
    assert table.entries == 300 + len(hashes)
    assert set(table.of(0).tolist()) == set(many[:300].tolist())


def test_what_comes_and_goes_for_ever_takes_no_more_memory() -> None:
    table = PrefixTable()
    for seed in range(60):
        hashes = random_hashes(1000, seed)
        table.add(0, hashes)
        table.remove(0, hashes)
    assert table.entries == 0
    assert table.bytes < 100_000


def test_beyond_its_bound_it_takes_nothing_new_and_says_how_many() -> None:
    table = PrefixTable(most=100)
    hashes = random_hashes(150)
    assert table.add(0, hashes[:90]) == 0
    assert table.add(1, hashes) == 50
    assert table.entries == 100
    # Those that another engine has already cost no room.
    assert set(hashes[:90].tolist()) <= set(table.of(1).tolist())
    table.clear(0)
    table.clear(1)
    assert table.add(2, hashes[:100]) == 0


def test_a_long_prompt_and_a_full_table_are_looked_up_as_any() -> None:
    table = PrefixTable(smallest=1 << 13)
    # Two thirds full, in runs that are longer than what is looked at in one go.
    hashes = random_hashes(5500)
    table.add(3, hashes)
    asked = np.concatenate((hashes[:2000], random_hashes(3000, 1)))
    assert table.depths(asked) == {3: 2000}
    assert [table.depths(asked[at : at + 1]) for at in range(0, 4000, 50)] == [{3: 1}] * 40 + [{}] * 40


def test_a_long_prompt_is_found_in_a_table_that_grew_around_it() -> None:
    table = PrefixTable(smallest=1 << 10)
    hashes = random_hashes(20_000)
    for at in range(0, len(hashes), 400):
        table.add(3, hashes[at : at + 400])
        assert table.depths(hashes[:400]) == {3: 400}


@pytest.mark.parametrize("hole", [0, 3, 7])
def test_a_prefix_with_holes_counts_to_the_last_checkpoint(hole: int) -> None:
    table = PrefixTable()
    path = random_hashes(8)
    table.add(5, np.delete(path, hole))
    assert table.depths(path) == {5: 7 if hole == 7 else 8}
    assert table.depths(path[:0]) == {}
