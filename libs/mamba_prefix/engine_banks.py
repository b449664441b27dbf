"""`EngineBanks`: prefix tables for any number of engines, each table with the bits of 64 engines.

A fleet of up to 64 engines has one table; a larger one is looked up once for each 64 engines. A hash that
engines of two tables have is an entry of both, and all tables share one bound. Called by `prefix_index`.
"""

import numpy as np

from mamba_prefix.page_chain import Hashes
from mamba_prefix.prefix_table import ENGINES_PER_TABLE, PrefixTable

MAX_ENGINES = 16 * ENGINES_PER_TABLE


class EngineBanks:
    """The prefix tables of a gateway: which engines, as numbers below `MAX_ENGINES`, have which hashes.

    `most` is the largest number of entries of all tables together.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._tables: dict[int, PrefixTable] = {0: PrefixTable(most)}

    @property
    def entries(self) -> int:
        """Number of entries of all tables together."""
        return sum(table.entries for table in self._tables.values())

    @property
    def bytes(self) -> int:
        """Size of all arrays in bytes."""
        return sum(table.bytes for table in self._tables.values())

    def depths(self, hashes: Hashes) -> dict[int, int]:
        """Return, for each engine that has any of `hashes`, the position after the last one it has."""
        depths_by_engine = self._tables[0].depths(hashes)
        if len(self._tables) > 1:
            for bank, table in self._tables.items():
                if bank and table.entries:
                    depths_by_engine |= {
                        bank * ENGINES_PER_TABLE + bit: depth for bit, depth in table.depths(hashes).items()
                    }
        return depths_by_engine

    def add(self, engine: int, hashes: Hashes) -> int:
        """Add hashes of `engine`, without duplicates, and return how many did not fit."""
        bank, bit = divmod(engine, ENGINES_PER_TABLE)
        table = self._tables.get(bank)
        if table is None:
            table = self._tables[bank] = PrefixTable(self._most)
        table.most = self._most - self.entries + table.entries
        return table.add(bit, hashes)

    def remove(self, engine: int, hashes: Hashes) -> None:
        """Remove hashes, without duplicates, of `engine`."""
        bank, bit = divmod(engine, ENGINES_PER_TABLE)
        if (table := self._tables.get(bank)) is not None:
            table.remove(bit, hashes)

    def clear(self, engine: int) -> None:
        """Remove all hashes of `engine`, and its table if that becomes empty."""
        bank, bit = divmod(engine, ENGINES_PER_TABLE)
        if (table := self._tables.get(bank)) is not None:
            table.clear(bit)
            if bank and not table.entries:
                del self._tables[bank]

    def of(self, engine: int) -> Hashes:
        """Return the hashes of `engine`, in no order."""
        bank, bit = divmod(engine, ENGINES_PER_TABLE)
        return self._tables[bank].of(bit) if bank in self._tables else np.empty(0, np.uint64)

    def count(self, engine: int) -> int:
        """Return the number of hashes of `engine`."""
        bank, bit = divmod(engine, ENGINES_PER_TABLE)
        return self._tables[bank].count(bit) if bank in self._tables else 0
