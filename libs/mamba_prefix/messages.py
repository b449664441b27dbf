"""What engines publish of their caches and gateways read: changes, heartbeats, snapshots, as msgpack.

A message names its version; a reader leaves what it does not know alone. What came later stands behind the
version: who does not know it reads the rest, and who misses it reads that there is none. Hashes and depths
are packed, little-endian, so that a thousand of them are one piece of memory.
"""

from collections.abc import Collection
from itertools import starmap
from struct import Struct
from typing import Annotated

import msgspec

from mamba_prefix.errors import ForeignMessage

VERSION = 1
_ENTRY = Struct("<QI")
"""A checkpoint: the hash of its prefix, and the tokens in it. 12 bytes."""
_HASH = 8


class Change(msgspec.Struct, tag="change", array_like=True, frozen=True):
    """What one engine gained and lost since its batch before."""

    engine: str
    incarnation: str
    """Another one after each start of the engine process: all that was published before is gone."""
    epoch: int
    """Rises when everything published before in this incarnation is void."""
    seq: int
    """1 more than that of the batch before; begins with 1 in each incarnation."""
    cleared: bool
    """All before it is void: what it gains is all there is."""
    gained: bytes
    """Checkpoints, each a hash in 8 bytes and a depth in 4."""
    lost: bytes
    """Their hashes, 8 bytes each."""
    at: float = 0.0
    """Seconds since 1970 on the engine's machine."""
    version: int = VERSION
    pages_gained: bytes = b""
    """Hashes of prefixes whose attention is there, at the rungs of prompts; with or without a checkpoint."""
    pages_lost: bytes = b""

    @property
    def payload(self) -> int:
        """Bytes of what it carries."""
        return len(self.gained) + len(self.lost) + len(self.pages_gained) + len(self.pages_lost)


class Heartbeat(msgspec.Struct, tag="heartbeat", array_like=True, frozen=True):
    """The engine lives, and this is how far it has published."""

    engine: str
    incarnation: str
    epoch: int
    seq: int
    fingerprint: str
    page_size: Annotated[int, msgspec.Meta(ge=0, le=1 << 16)]
    version: int = VERSION


class Snapshot(msgspec.Struct, tag="snapshot", array_like=True, frozen=True):
    """All that one engine has after its batch `seq`."""

    engine: str
    incarnation: str
    epoch: int
    seq: int
    fingerprint: str
    page_size: Annotated[int, msgspec.Meta(ge=0, le=1 << 16)]
    entries: bytes
    """Checkpoints, each a hash in 8 bytes and a depth in 4."""
    after: str = ""
    """Where in the stream `seq` is certain to be passed: later batches stand behind it."""
    version: int = VERSION
    pages: bytes = b""
    """Hashes of the prefixes whose attention is there, at the rungs of prompts."""


class Feed(msgspec.Struct, tag="feed", array_like=True, frozen=True):
    """An engine's own answer to who follows it without Redis: a snapshot if one is needed, then changes."""

    heartbeat: Heartbeat
    snapshot: Snapshot | None
    changes: list[Change]
    version: int = VERSION


Message = Change | Heartbeat | Snapshot | Feed
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def pack(message: Message) -> bytes:
    """The message on the wire."""
    return _encoder.encode(message)


def unpack(raw: bytes) -> Message:
    """The message in `raw`. Raises ForeignMessage for what this version cannot read."""
    try:
        message: Message = _decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ForeignMessage(f"is no message of this version of the prefix index: {error}") from error
    if message.version != VERSION:
        raise ForeignMessage(f"is of version {message.version}, and this is version {VERSION}")
    parts: tuple[Message | None, ...] = (message,)
    if isinstance(message, Feed):
        parts = (message.snapshot, *message.changes)
    for each in parts:
        if isinstance(each, Change):
            _check(each.gained, _ENTRY.size)
            for hashes in (each.lost, each.pages_gained, each.pages_lost):
                _check(hashes, _HASH)
        elif isinstance(each, Snapshot):
            _check(each.entries, _ENTRY.size)
            _check(each.pages, _HASH)
    return message


def _check(raw: bytes, size: int) -> None:
    if len(raw) % size:
        raise ForeignMessage(f"has {len(raw)} bytes where each item takes {size}")


def pack_entries(depths: dict[int, int]) -> bytes:
    """Depths by hash, packed."""
    return b"".join(starmap(_ENTRY.pack, depths.items()))


def pack_hashes(hashes: Collection[int]) -> bytes:
    """Hashes, packed."""
    return Struct(f"<{len(hashes)}Q").pack(*hashes)


def unpack_entries(raw: bytes) -> dict[int, int]:
    """What `pack_entries` packed."""
    return dict(_ENTRY.iter_unpack(raw))


def unpack_hashes(raw: bytes) -> tuple[int, ...]:
    """What `pack_hashes` packed."""
    return Struct(f"<{len(raw) // _HASH}Q").unpack(raw)
