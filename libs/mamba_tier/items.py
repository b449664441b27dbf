"""`Item`: a stored record or block of pages, and `Record`: an item with a state. Plain data without bytes.

The store's lock protects every field that changes.
"""

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Item:
    """A block of pages, or the base of a record. An item is released when nobody refers to it any more."""

    tier: str
    """Name of the tier that has the bytes."""
    key: int
    """Chain hash of the prefix at `depth`."""
    digest: bytes
    """Digest of salt and tokens of the same prefix, which no two prompts share."""
    depth: int
    """Token at which the pages end."""
    first: int
    """Token at which the pages begin."""
    cost: int
    """Bytes of its tier's budget that the item takes."""
    place: object = None
    """Where the tier has the bytes."""
    sums: bytes = b""
    """Checksums of the parts; empty where the tier keeps them beside the bytes."""
    references: int = 0
    """Number of records and readers that need the item."""
    gone: bool = False
    """Whether the index has dropped the item: nobody finds it, and its bytes go with the last reference."""


@dataclass(slots=True, eq=False)
class Record(Item):
    """A state with the pages behind its last whole block."""

    blocks: list[Item] = field(default_factory=list)
    """Blocks of [0, first) that the record refers to; some may be missing."""
    block_keys: tuple[int, ...] = ()
    """Chain hashes at the ends of all blocks of [0, first)."""
    hits: int = 0
    tokens: int = 0
    """Tokens of recomputation that the record saves."""
    priority: float = 0.0
