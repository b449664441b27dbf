"""Messages of the transfer protocol, version `VERSION`.

The reader says Hello, Fetch, Renew, Done, Abort and Hot; the source answers Welcome, Refuse, Offer,
Checksums, Renewed, Valid, Expired and Hottest. An engine that ends says Leaving and Bequest to its peers,
which answer Places and Inherited. Bytes of a bundle follow an Offer as they are. Every field has
a bound, so that a message costs no more memory than its frame.
"""

import struct
from collections.abc import Sequence
from typing import Annotated

import msgspec

from mamba_transfer.errors import ForeignFrame
from mamba_transfer.layout import StateLayout

VERSION = 1
MOST_TOKENS = 1 << 22
"""Tokens of the longest prefix that can be asked for."""
MOST_BLOCKS = 1 << 22
"""Sub-blocks of the largest bundle."""
MOST_HOT = 256
"""Prefixes in one answer to Hot."""
MOST_HOT_BYTES = 16 << 20
"""Bytes of token ids in one answer to Hot."""
MOST_DESCRIPTION_BYTES = 1 << 20
"""Bytes of the largest description of memory in an offer."""

Identifier = Annotated[str, msgspec.Meta(max_length=256)]
Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Tokens = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]


class Hello(msgspec.Struct, tag="hello", array_like=True, frozen=True):
    """The reader's first message."""

    incarnation: Identifier
    """Incarnation of the source that the reader means; empty = whichever there is."""
    layout: StateLayout
    """Layout of the reader."""
    transport: Identifier = "sockets"
    """Name of the transport that carries the bytes."""


class Welcome(msgspec.Struct, tag="ok", array_like=True, frozen=True):
    """Consent to a Hello."""

    layout: StateLayout
    """Layout of the source."""


class Refuse(msgspec.Struct, tag="refuse", array_like=True, frozen=True):
    """Refusal of a Hello or of a Fetch, for the field that does not fit."""

    field: Annotated[str, msgspec.Meta(max_length=4096)]


class Wanted(msgspec.Struct, tag="fetch", array_like=True, frozen=True):
    """A request for one checkpoint, by the name of an export or by the prefix: the message Fetch."""

    depth: Tokens
    """Depth of the checkpoint in tokens, exactly."""
    base: Tokens = 0
    """Tokens whose pages the reader has: pages of [base, depth) travel."""
    export: Identifier = ""
    """Name of an export; empty = the checkpoint is looked up by its prefix."""
    salt: Annotated[str, msgspec.Meta(max_length=4096)] = ""
    """Salt of the prefix."""
    token_ids: Annotated[bytes, msgspec.Meta(max_length=4 * MOST_TOKENS)] = b""
    """The prefix: `depth` token ids, little-endian in 4 bytes each. Empty where `export` is set."""

    @classmethod
    def of_prefix(cls, token_ids: Sequence[int], salt: str, *, base: int = 0) -> "Wanted":
        """Return a request for the checkpoint at the end of `token_ids`."""
        packed = struct.pack(f"<{len(token_ids)}I", *token_ids)
        return cls(depth=len(token_ids), base=base, salt=salt, token_ids=packed)

    def prefix(self) -> tuple[int, ...]:
        """Return the token ids of the prefix."""
        return struct.unpack(f"<{len(self.token_ids) // 4}I", self.token_ids)

    @property
    def sound(self) -> bool:
        """Return whether the fields fit each other: an export, or exactly the tokens of its depth."""
        return self.base <= self.depth and len(self.token_ids) == (0 if self.export else 4 * self.depth)


class Offer(msgspec.Struct, tag="offer", array_like=True, frozen=True):
    """The source's consent to a Fetch; the bytes follow."""

    depth: Tokens
    base: Tokens
    length: Size
    """Bytes that this source sends."""
    lease_seconds: float
    description: Annotated[bytes, msgspec.Meta(max_length=MOST_DESCRIPTION_BYTES)] = b""
    """The memory to read, in the terms of the transport."""


class Checksums(msgspec.Struct, tag="checksums", array_like=True, frozen=True):
    """Checksums of all sub-blocks, after the bytes."""

    digests: Annotated[bytes, msgspec.Meta(max_length=8 * MOST_BLOCKS)]
    """xxh3_64 of each sub-block, little-endian in 8 bytes each."""


class Renew(msgspec.Struct, tag="renew", array_like=True, frozen=True):
    """A sign that the reader still wants these exports; the empty name is the one that is being read."""

    exports: Annotated[tuple[Identifier, ...], msgspec.Meta(max_length=256)]


class Renewed(msgspec.Struct, tag="renewed", array_like=True, frozen=True):
    """The exports whose leases go on."""

    exports: Annotated[tuple[Identifier, ...], msgspec.Meta(max_length=256)]


class Done(msgspec.Struct, tag="done", array_like=True, frozen=True):
    """A sign that all bytes landed. The source answers whether they were the export's all the time."""


class Abort(msgspec.Struct, tag="abort", array_like=True, frozen=True):
    """A sign that the reader wants the export no longer."""


class Valid(msgspec.Struct, tag="valid", array_like=True, frozen=True):
    """A promise that the export was held until all bytes had been read."""


class Expired(msgspec.Struct, tag="expired", array_like=True, frozen=True):
    """An answer that there is no such export, or that its lease ended, or that its engine restarted."""


class Hot(msgspec.Struct, tag="hot", array_like=True, frozen=True):
    """A question for the prefixes that the source would evict last."""

    count: Annotated[int, msgspec.Meta(ge=1, le=MOST_HOT)]


class HotPrefix(msgspec.Struct, array_like=True, frozen=True):
    """One checkpoint that a source has."""

    salt: Annotated[str, msgspec.Meta(max_length=4096)]
    token_ids: Annotated[bytes, msgspec.Meta(max_length=MOST_HOT_BYTES)]
    """Tokens of the prefix, little-endian in 4 bytes each."""
    size: Size
    """Bytes of its state and of all its pages."""

    @property
    def depth(self) -> int:
        """Number of tokens of the prefix."""
        return len(self.token_ids) // 4


class Hottest(msgspec.Struct, tag="hottest", array_like=True, frozen=True):
    """The answer to Hot, the most valuable prefix first. Each may be gone when it is fetched."""

    incarnation: Identifier
    """Incarnation of the source, for the fetches that follow."""
    prefixes: Annotated[tuple[HotPrefix, ...], msgspec.Meta(max_length=MOST_HOT)]


class Leaving(msgspec.Struct, tag="leaving", array_like=True, frozen=True):
    """A question of an engine that is about to end: how many of its states would the peer take."""

    role: Identifier
    """Role of the engine: the same peers get the requests that it would have had."""


class Places(msgspec.Struct, tag="places", array_like=True, frozen=True):
    """The answer to Leaving: the number of states that the peer has room for."""

    states: Annotated[int, msgspec.Meta(ge=0, le=MOST_HOT)]


class Bequest(msgspec.Struct, tag="bequest", array_like=True, frozen=True):
    """Checkpoints of an engine that is about to end, the most valuable first, for the peer to fetch."""

    address: Identifier
    """Address of the engine's transfer server."""
    incarnation: Identifier
    prefixes: Annotated[tuple[HotPrefix, ...], msgspec.Meta(max_length=MOST_HOT)]
    seconds: Annotated[float, msgspec.Meta(gt=0, le=600)]
    """Time after which the engine ends whatever was fetched."""


class Inherited(msgspec.Struct, tag="inherited", array_like=True, frozen=True):
    """The answer to a Bequest, once the peer fetches no more of it."""

    states: Annotated[int, msgspec.Meta(ge=0, le=MOST_HOT)]
    """Number of states that the peer has fetched."""


FromReader = Hello | Wanted | Renew | Done | Abort | Hot | Leaving | Bequest
FromSource = Welcome | Refuse | Offer | Checksums | Renewed | Valid | Expired | Hottest | Places | Inherited
_encoder = msgspec.msgpack.Encoder()
_from_reader = msgspec.msgpack.Decoder(FromReader)
_from_source = msgspec.msgpack.Decoder(FromSource)


def pack(message: FromReader | FromSource) -> bytes:
    """Return the bytes of a message, without the header of its frame."""
    return _encoder.encode(message)


def unpack_from_reader(body: bytes | bytearray) -> FromReader:
    """Return the message in `body`. Raises ForeignFrame if no reader of this version sends it."""
    try:
        message: FromReader = _from_reader.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ForeignFrame(f"no message of a reader: {error}") from error
    return message


def unpack_from_source(body: bytes | bytearray) -> FromSource:
    """Return the message in `body`. Raises ForeignFrame if no source of this version sends it."""
    try:
        message: FromSource = _from_source.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ForeignFrame(f"no message of a source: {error}") from error
    return message
