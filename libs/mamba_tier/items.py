"""`Item`: a stored block of pages, and `Record`: an item with a state. Facts and references, no bytes.

The store's lock protects every field that changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


class Keeper(Protocol):
    """The tier that has the bytes of an item."""

    name: str

    def forget(self, item: Item) -> None:
        """Take the item out of the tier's accounts and free its bytes: nobody refers to the item any more."""

    def drop(self, item: Item) -> None:
        """Take the item out of the tier's index, so that nobody finds it."""

    def touch(self, record: Record) -> None:
        """Count a use of the record."""


@dataclass(slots=True, eq=False)
class Item:
    """A block of pages, or the base of a record."""

    keeper: Keeper
    key: int
    """Chain hash of the prefix of `depth` tokens."""
    digest: bytes
    """Digest of salt and tokens of the same prefix, which no two prompts share."""
    first: int
    """Token at which the pages begin."""
    depth: int
    """Token at which the pages end."""
    cost: int
    """Bytes of its tier's budget that the item takes."""
    place: object
    """Where the tier has the bytes."""
    sums: bytes = b""
    """Checksums of the parts; empty where the tier keeps them beside the bytes."""
    references: int = 0
    """Number of records and readers that need the item; the index counts as one for a record."""
    gone: bool = False
    """Whether the index has dropped the item, so that nobody finds it any more."""


@dataclass(slots=True, eq=False)
class Record(Item):
    """A state with the pages behind its last whole block."""

    block_keys: tuple[int, ...] = ()
    """Chain hashes at the ends of all blocks of [0, first)."""
    blocks: list[Item] = field(default_factory=list)
    """Stored blocks that the record refers to; the record keeps them from being freed."""
    tokens: int = 0
    """Tokens of recomputation that the record saves."""
    hits: int = 0
    priority: float = 0.0


def let_go(item: Item) -> None:
    """Drop one reference. The last one frees the item, and drops the references of a record to its blocks."""
    item.references -= 1
    if item.references:
        return
    item.keeper.forget(item)
    if isinstance(item, Record):
        for block in item.blocks:
            let_go(block)
