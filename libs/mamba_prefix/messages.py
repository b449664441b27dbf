"""Messages about the caches of engines, which gateways read: changes, heartbeats, snapshots, as msgpack.

A message names its version; a reader ignores messages of other versions. Fields that were added later are
behind the version: an older reader ignores them, and a newer reader of an older message uses their defaults.
Hashes and depths are packed, little-endian, so that a thousand of them are one piece of memory.
"""

from collections.abc import Collection
from itertools import starmap
from struct import Struct
from typing import Annotated

import msgspec

from mamba_prefix.errors import ForeignMessage

VERSION = 1
_ENTRY = Struct("<QI")
"""A checkpoint: the hash of its prefix, and the number of tokens in it. 12 bytes."""
_HASH = 8


class Change(msgspec.Struct, tag="change", array_like=True, frozen=True):
    """Checkpoints and pages that one engine's cache gained and lost since the engine's previous batch."""

    engine: str
    incarnation: str
    """Identifier of one run of the engine process. A new one voids everything that was published before."""
    epoch: int
    """Number that rises when everything published before in this incarnation is void."""
    seq: int
    """Number of the batch: 1 for the first in each incarnation, and one more for each batch."""
    cleared: bool
    """Whether everything before this batch is void, so that it holds all entries of the engine."""
    gained: bytes
    """Checkpoints, each a hash in 8 bytes and a depth in 4."""
    lost: bytes
    """Hashes of checkpoints, 8 bytes each."""
    at: float = 0.0
    """Time of the batch in seconds since 1970, by the clock of the engine's machine."""
    version: int = VERSION
    pages_gained: bytes = b""
    """Hashes of prefixes, at the rungs of prompts, whose attention pages are cached, with or without a
    checkpoint."""
    pages_lost: bytes = b""

    @property
    def payload(self) -> int:
        """Number of bytes of all packed fields."""
        return len(self.gained) + len(self.lost) + len(self.pages_gained) + len(self.pages_lost)


class Heartbeat(msgspec.Struct, tag="heartbeat", array_like=True, frozen=True):
    """A sign of life of an engine, with its position in its own stream of batches."""

    engine: str
    incarnation: str
    epoch: int
    seq: int
    fingerprint: str
    page_size: Annotated[int, msgspec.Meta(ge=0, le=1 << 16)]
    version: int = VERSION


class Snapshot(msgspec.Struct, tag="snapshot", array_like=True, frozen=True):
    """All entries of one engine after its batch `seq`."""

    engine: str
    incarnation: str
    epoch: int
    seq: int
    fingerprint: str
    page_size: Annotated[int, msgspec.Meta(ge=0, le=1 << 16)]
    entries: bytes
    """Checkpoints, each a hash in 8 bytes and a depth in 4."""
    after: str = ""
    """Position in the stream of Redis behind which all batches after `seq` are."""
    version: int = VERSION
    pages: bytes = b""
    """Hashes of the prefixes, at the rungs of prompts, whose attention pages are cached."""


class Feed(msgspec.Struct, tag="feed", array_like=True, frozen=True):
    """An engine's own answer to a gateway without Redis: a snapshot if one is needed, then changes."""

    heartbeat: Heartbeat
    snapshot: Snapshot | None
    changes: list[Change]
    version: int = VERSION


Message = Change | Heartbeat | Snapshot | Feed
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def pack(message: Message) -> bytes:
    """Return the bytes of a message."""
    return _encoder.encode(message)


def unpack(raw: bytes) -> Message:
    """Return the message in `raw`. Raises ForeignMessage if this version cannot read it."""
    try:
        message: Message = _decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ForeignMessage(f"is not a message of this version of the prefix index: {error}") from error
    if message.version != VERSION:
        raise ForeignMessage(f"is of version {message.version}, and this is version {VERSION}")
    parts: tuple[Message | None, ...] = (message,)
    if isinstance(message, Feed):
        parts = (message.snapshot, *message.changes)
    for part in parts:
        if isinstance(part, Change):
            _check(part.gained, _ENTRY.size)
            for hashes in (part.lost, part.pages_gained, part.pages_lost):
                _check(hashes, _HASH)
        elif isinstance(part, Snapshot):
            _check(part.entries, _ENTRY.size)
            _check(part.pages, _HASH)
    return message


def _check(raw: bytes, size: int) -> None:
    if len(raw) % size:
        raise ForeignMessage(f"has {len(raw)} bytes where each item takes {size}")


def pack_entries(depths: dict[int, int]) -> bytes:
    """Return the bytes of hashes, each with its depth."""
    return b"".join(starmap(_ENTRY.pack, depths.items()))


def pack_hashes(hashes: Collection[int]) -> bytes:
    """Return the bytes of hashes."""
    return Struct(f"<{len(hashes)}Q").pack(*hashes)


def unpack_entries(raw: bytes) -> dict[int, int]:
    """Return the depths by hash that `pack_entries` packed."""
    return dict(_ENTRY.iter_unpack(raw))


def unpack_hashes(raw: bytes) -> tuple[int, ...]:
    """Return the hashes that `pack_hashes` packed."""
    return Struct(f"<{len(raw) // _HASH}Q").unpack(raw)
