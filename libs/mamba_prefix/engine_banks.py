"""`EngineBanks`: prefix tables for any number of engines, each table with the bits of 64.

A fleet of up to 64 engines has one table and pays for no other; a larger one is looked up once for each 64. A
hash that engines of two tables have is an entry of both, and all share one bound. Called by `prefix_index`.
"""

import numpy as np

from mamba_prefix.page_chain import Hashes
from mamba_prefix.prefix_table import MOST_ENGINES as BANK
from mamba_prefix.prefix_table import PrefixTable

MOST_ENGINES = 16 * BANK


class EngineBanks:
    """Hashes and their engines, engines as numbers below `MOST_ENGINES`. `most`: entries of all tables."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._tables: dict[int, PrefixTable] = {0: PrefixTable(most)}

    @property
    def entries(self) -> int:
        """Count the entries of all tables."""
        return sum(table.entries for table in self._tables.values())

    @property
    def bytes(self) -> int:
        """Add up what the arrays take."""
        return sum(table.bytes for table in self._tables.values())

    def depths(self, hashes: Hashes) -> dict[int, int]:
        """For each engine that has any of `hashes`: how many of them lead up to the last one that it has."""
        found = self._tables[0].depths(hashes)
        if len(self._tables) > 1:
            for bank, table in self._tables.items():
                if bank and table.entries:
                    found |= {bank * BANK + bit: depth for bit, depth in table.depths(hashes).items()}
        return found

    def add(self, engine: int, hashes: Hashes) -> int:
        """`engine` has these (none twice in `hashes`). Returns how many of them there was no room for."""
        bank, bit = divmod(engine, BANK)
        table = self._tables.get(bank)
        if table is None:
            table = self._tables[bank] = PrefixTable(self._most)
        table.most = self._most - self.entries + table.entries
        return table.add(bit, hashes)

    def remove(self, engine: int, hashes: Hashes) -> None:
        """`engine` has these no more (none twice in `hashes`)."""
        bank, bit = divmod(engine, BANK)
        if (table := self._tables.get(bank)) is not None:
            table.remove(bit, hashes)

    def clear(self, engine: int) -> None:
        """`engine` has nothing any more; a table of which no engine has anything is gone."""
        bank, bit = divmod(engine, BANK)
        if (table := self._tables.get(bank)) is not None:
            table.clear(bit)
            if bank and not table.entries:
                del self._tables[bank]

    def of(self, engine: int) -> Hashes:
        """Return what `engine` has, in no order."""
        bank, bit = divmod(engine, BANK)
        return self._tables[bank].of(bit) if bank in self._tables else np.empty(0, np.uint64)

    def count(self, engine: int) -> int:
        """Count what `engine` has."""
        bank, bit = divmod(engine, BANK)
        return self._tables[bank].count(bit) if bank in self._tables else 0
