"""Messages of the transfer protocol, version `VERSION`.

The reader sends Hello, Fetch, Renew, Done, Abort and Hot; the source, which has the checkpoint, answers with
Welcome, Refuse, Offer, Checksums, Renewed, Valid, Expired and Hottest. An engine that ends sends Leaving
and Bequest to its peers, which answer with Places and Inherited. The bytes of a bundle follow an Offer
without a frame. Every field has a maximum size, so that a message takes no more memory than its frame.
"""

import struct
from collections.abc import Sequence
from typing import Annotated

import msgspec

from mamba_transfer.errors import ForeignFrame
from mamba_transfer.layout import StateLayout

VERSION = 1
MOST_TOKENS = 1 << 22
"""Number of tokens of the longest prefix that a reader may request."""
MOST_BLOCKS = 1 << 22
"""Number of sub-blocks, each with a checksum, of the largest bundle."""
MOST_HOT = 256
"""Maximum number of prefixes in one answer to Hot."""
MOST_HOT_BYTES = 16 << 20
"""Maximum size in bytes of the token ids in one answer to Hot."""
MOST_DESCRIPTION_BYTES = 1 << 20
"""Maximum size in bytes of the description of the source's memory in an Offer."""

Identifier = Annotated[str, msgspec.Meta(max_length=256)]
Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Tokens = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]


class Hello(msgspec.Struct, tag="hello", array_like=True, frozen=True):
    """First message of a reader: its layout, and how the bytes shall be carried."""

    incarnation: Identifier
    """Run of the source's process that the reader means, which changes with every start; empty = any."""
    layout: StateLayout
    """Layout of the reader."""
    transport: Identifier = "sockets"
    """Name of the transport that carries the bytes."""


class Welcome(msgspec.Struct, tag="ok", array_like=True, frozen=True):
    """Answer to a Hello of a reader whose layout fits."""

    layout: StateLayout
    """Layout of the source."""


class Refuse(msgspec.Struct, tag="refuse", array_like=True, frozen=True):
    """Answer to a Hello whose layout, transport or version of the protocol does not fit the source.

    `field` names what does not fit, with both values where there are two.
    """

    field: Annotated[str, msgspec.Meta(max_length=4096)]


class Wanted(msgspec.Struct, tag="fetch", array_like=True, frozen=True):
    """Request for one checkpoint, by the name of an export or by its prefix. The message is called Fetch."""

    depth: Tokens
    """Exact number of tokens of the prefix at whose end the checkpoint was taken."""
    base: Tokens = 0
    """Number of tokens whose pages the reader has already; only the pages of the tokens [base, depth) are
    sent."""
    export: Identifier = ""
    """Name of an export; empty = the checkpoint is looked up by its prefix."""
    salt: Annotated[str, msgspec.Meta(max_length=4096)] = ""
    """Salt of the prefix: text that keeps the cached prefixes of different clients apart."""
    token_ids: Annotated[bytes, msgspec.Meta(max_length=4 * MOST_TOKENS)] = b""
    """The prefix: `depth` token ids of 4 bytes each, little-endian. Empty where `export` is set."""

    @classmethod
    def of_prefix(cls, token_ids: Sequence[int], salt: str, *, base: int = 0) -> "Wanted":
        """Return a request for the checkpoint at the end of the prefix `token_ids`.

        `base` is the number of tokens whose pages the reader has already.
        """
        packed = struct.pack(f"<{len(token_ids)}I", *token_ids)
        return cls(depth=len(token_ids), base=base, salt=salt, token_ids=packed)

    def prefix(self) -> tuple[int, ...]:
        """Return the token ids of the prefix."""
        return struct.unpack(f"<{len(self.token_ids) // 4}I", self.token_ids)

    @property
    def sound(self) -> bool:
        """Whether the request names an export or has `depth` token ids, and `base` is at most `depth`."""
        return self.base <= self.depth and len(self.token_ids) == (0 if self.export else 4 * self.depth)


class Offer(msgspec.Struct, tag="offer", array_like=True, frozen=True):
    """Answer to a Fetch of a checkpoint that the source has. The bytes of the bundle follow."""

    depth: Tokens
    base: Tokens
    length: Size
    """Number of bytes that this rank of the source sends."""
    lease_seconds: float
    description: Annotated[bytes, msgspec.Meta(max_length=MOST_DESCRIPTION_BYTES)] = b""
    """Description of the source's memory for a transport whose reader reads it by itself; empty for
    sockets."""


class Checksums(msgspec.Struct, tag="checksums", array_like=True, frozen=True):
    """Checksums of all sub-blocks of a bundle, sent after its bytes."""

    digests: Annotated[bytes, msgspec.Meta(max_length=8 * MOST_BLOCKS)]
    """xxh3_64 of each sub-block, little-endian in 8 bytes each."""


class Renew(msgspec.Struct, tag="renew", array_like=True, frozen=True):
    """Request to extend the leases of exports. An empty name stands for the export that is being read."""

    exports: Annotated[tuple[Identifier, ...], msgspec.Meta(max_length=256)]


class Renewed(msgspec.Struct, tag="renewed", array_like=True, frozen=True):
    """Answer to Renew: the names of the exports whose leases were extended."""

    exports: Annotated[tuple[Identifier, ...], msgspec.Meta(max_length=256)]


class Done(msgspec.Struct, tag="done", array_like=True, frozen=True):
    """Message of the reader that all bytes have arrived. The source answers with Valid or Expired."""


class Abort(msgspec.Struct, tag="abort", array_like=True, frozen=True):
    """A sign that the reader no longer wants the open export, nor any of the exports in `exports`."""

    exports: Annotated[tuple[Identifier, ...], msgspec.Meta(max_length=256)] = ()
    """Names of exports that the reader will not open."""


class Valid(msgspec.Struct, tag="valid", array_like=True, frozen=True):
    """Answer to Done: the source kept the export unchanged until all bytes had been read."""


class Expired(msgspec.Struct, tag="expired", array_like=True, frozen=True):
    """Answer that the export does not exist, that its lease has ended, or that the engine has restarted."""


class Hot(msgspec.Struct, tag="hot", array_like=True, frozen=True):
    """Request for the prefixes that the source would evict last."""

    count: Annotated[int, msgspec.Meta(ge=1, le=MOST_HOT)]


class HotPrefix(msgspec.Struct, array_like=True, frozen=True):
    """Prefix of which a source has a checkpoint."""

    salt: Annotated[str, msgspec.Meta(max_length=4096)]
    token_ids: Annotated[bytes, msgspec.Meta(max_length=MOST_HOT_BYTES)]
    """Token ids of the prefix, 4 bytes each, little-endian."""
    size: Size
    """Size in bytes of the checkpoint's state and all of its pages."""

    @property
    def depth(self) -> int:
        """Number of tokens of the prefix."""
        return len(self.token_ids) // 4


class Hottest(msgspec.Struct, tag="hottest", array_like=True, frozen=True):
    """Answer to Hot, the most valuable prefix first. Each of them may be evicted before it is fetched."""

    incarnation: Identifier
    """Run of the source's process, to be named in the Hello of a fetch that follows."""
    prefixes: Annotated[tuple[HotPrefix, ...], msgspec.Meta(max_length=MOST_HOT)]


class Leaving(msgspec.Struct, tag="leaving", array_like=True, frozen=True):
    """A question of an engine that is about to end: how many of its states the peer would take."""

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
    """Seconds after which the engine ends, however many states have been fetched."""


class Inherited(msgspec.Struct, tag="inherited", array_like=True, frozen=True):
    """The answer to a Bequest, sent when the peer fetches no more of its states."""

    states: Annotated[int, msgspec.Meta(ge=0, le=MOST_HOT)]
    """Number of states that the peer has fetched."""


FromReader = Hello | Wanted | Renew | Done | Abort | Hot | Leaving | Bequest
FromSource = Welcome | Refuse | Offer | Checksums | Renewed | Valid | Expired | Hottest | Places | Inherited
_encoder = msgspec.msgpack.Encoder()
_from_reader = msgspec.msgpack.Decoder(FromReader)
_from_source = msgspec.msgpack.Decoder(FromSource)


def pack(message: FromReader | FromSource) -> bytes:
    """Return a message as the body of a frame."""
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
