"""`Item`: a stored block of pages, and `Record`: an item with a state.

A block of pages serves every record whose prefix begins with its tokens. Items describe bytes and hold none.

The lock of the store protects every field that changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


class Keeper(Protocol):
    """The tier that holds an item's bytes, as far as items call it."""

    name: str

    def forget(self, item: Item) -> None:
        """Free the bytes of an item that nothing refers to, and subtract its cost from the used bytes."""

    def drop(self, item: Item) -> None:
        """Remove the item from the tier's index, so that no lookup finds it."""

    def touch(self, record: Record) -> None:
        """Count a use of the record, which raises its priority."""


@dataclass(slots=True, eq=False)
class Item:
    """Entry of a tier under one key: a block of attention pages, or (as a `Record`) a state."""

    keeper: Keeper
    key: int
    """Chain hash of the prefix of `depth` tokens, by which the item is found."""
    digest: bytes
    """Cryptographic digest of the salt and of the first `depth` tokens, which proves that the item belongs to
    them."""
    first: int
    """Token at which the item's pages begin."""
    depth: int
    """Token at which the item's pages end."""
    cost: int
    """Bytes of the tier's budget that the item takes."""
    place: object
    """Location of the bytes in the tier: pieces of memory, or the name of a file."""
    sums: bytes = b""
    """Checksums of the parts of the item; empty where the tier stores them together with the bytes."""
    references: int = 0
    """Number of references. A block has one from each record that needs it, and a record one from the index;
    readers and the writer hold further ones for a time. At zero the bytes are freed."""
    gone: bool = False
    """Whether the item was removed from the index."""


@dataclass(slots=True, eq=False)
class Record(Item):
    """A stored state, with the pages behind the last whole block of its prefix."""

    block_keys: tuple[int, ...] = ()
    """Chain hashes at the ends of all blocks of the tokens [0, first)."""
    blocks: list[Item] = field(default_factory=list)
    """Stored blocks that the record needs. Its references keep them from being freed."""
    tokens: int = 0
    """Number of tokens that need not be computed again if a prompt resumes from the record."""
    hits: int = 0
    """Number of its uses."""
    priority: float = 0.0
    """Order of eviction: the record with the lowest priority goes first."""


def let_go(item: Item) -> None:
    """Drop one reference to an item. The last one frees its bytes and a record's references to blocks."""
    item.references -= 1
    if item.references:
        return
    item.keeper.forget(item)
    if isinstance(item, Record):
        for block in item.blocks:
            let_go(block)
