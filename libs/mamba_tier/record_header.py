"""`Header`: the beginning of a file of the disk tier, which identifies the file and verifies its bytes.

A file is a record (a state with its last pages) or a block of pages that records share. It consists of a
header, the bytes of a state (in records only) and the bytes of pages. The header is padded to whole blocks of
the file system. It has a checksum of its own, which covers the padding, and it contains a checksum of each
part of the bytes that follow (the payload). Pure.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np
import xxhash

from mamba_tier.bundle_shape import BundleShape

FORMAT = 1
"""Version of the file format. It must be raised whenever the meaning of a file changes."""
MAGIC = b"mambatr\n"
ALIGNMENT = 4096
PART_BYTES = 1 << 20
"""Size in bytes of a part of a state: small enough to be still in the processor's cache when it is
verified."""
PAGES_PART_BYTES = 256 << 10
"""Size in bytes of a part of several pages. A read that starts within such a part reads the whole part."""
_FRONT = struct.Struct("<8sIIIIQ")
_LARGEST = 64 << 20


class Part(NamedTuple):
    """A part of a payload that has its own checksum: the bytes [start, start + length)."""

    number: int
    """Position of its checksum among those of the payload."""
    start: int
    """Offset in the payload, in bytes."""
    length: int


class Header(msgspec.Struct, frozen=True, array_like=True):
    """Describes one file of the disk tier, at the file's beginning.

    The file of a block has no state and no list of blocks.
    """

    fingerprint: str
    """Identity of the model whose bytes these are."""
    layout: str
    """Digest of the layout of states and pages."""
    is_record: bool
    """Whether the file holds a state, as a record does; the file of a block holds only pages."""
    page_size: int
    """Tokens of a page."""
    state_bytes: int
    page_bytes: int
    key: int
    """Chain hash of the prefix that ends here."""
    digest: bytes
    """Cryptographic digest of salt and tokens of that prefix."""
    first: int
    """First token whose page the file holds."""
    depth: int
    """Number of tokens of the prefix."""
    tokens: int
    """Number of tokens that need not be computed again if a prompt resumes from the record."""
    part_bytes: int
    """Size in bytes of each part of the state."""
    part_pages: int
    """Number of pages of each part of the pages."""
    sums: bytes
    """XXH3 checksums, 8 bytes each: first of the parts of the state, then of the parts of the pages."""
    block_keys: bytes
    """Chain hashes, 8 bytes each, of the blocks of the tokens [0, first)."""

    @property
    def payload_bytes(self) -> int:
        """Size in bytes of the payload, which follows the header."""
        return self.state_bytes + (self.depth - self.first) // self.page_size * self.page_bytes


def parts(shape: BundleShape, tokens: int, *, is_record: bool) -> Iterator[Part]:
    """Yield the parts of the payload of a record or block with the pages of `tokens` tokens, in order."""
    number, state_bytes = 0, shape.state_bytes if is_record else 0
    for start in range(0, state_bytes, PART_BYTES):
        yield Part(number, start, min(PART_BYTES, state_bytes - start))
        number += 1
    end = state_bytes + shape.pages_bytes(tokens)
    step = part_pages(shape) * shape.page_bytes
    for start in range(state_bytes, end, step or 1):
        yield Part(number, start, min(step, end - start))
        number += 1


def part_pages(shape: BundleShape) -> int:
    """Return the number of pages that share one checksum."""
    return max(1, min(shape.block_pages, PAGES_PART_BYTES // max(1, shape.page_bytes)))


def packed(numbers: list[int] | tuple[int, ...]) -> bytes:
    """Pack integers into bytes, 8 bytes each."""
    return np.array(numbers, "<u8").tobytes()


def unpacked(raw: bytes) -> list[int]:
    """Return the integers in bytes that `packed` returned."""
    numbers: list[int] = np.frombuffer(raw, "<u8").tolist()
    return numbers


def encoded(header: Header) -> bytes:
    """Return the bytes of a header, padded to a multiple of the alignment."""
    body = msgspec.msgpack.encode(header)
    total = -(-(_FRONT.size + len(body)) // ALIGNMENT) * ALIGNMENT
    raw = bytearray(total)
    raw[_FRONT.size : _FRONT.size + len(body)] = body
    _FRONT.pack_into(raw, 0, MAGIC, FORMAT, total, len(body), 0, 0)
    _FRONT.pack_into(raw, 0, MAGIC, FORMAT, total, len(body), 0, xxhash.xxh3_64_intdigest(raw))
    return bytes(raw)


def header_bytes(raw: bytes) -> int | None:
    """Return the length in bytes of the header at the beginning of `raw`; None = it has another format."""
    if len(raw) < _FRONT.size:
        return None
    magic, version, total, body, reserved, _ = _FRONT.unpack_from(raw)
    fits = _FRONT.size + body <= total <= _LARGEST and not total % ALIGNMENT
    return total if magic == MAGIC and version == FORMAT and not reserved and fits else None


def decoded(raw: bytes) -> Header | None:
    """Return the header that `raw` holds; None if the bytes are damaged or of another format."""
    if header_bytes(raw) != len(raw):
        return None
    _, _, _, body, _, expected = _FRONT.unpack_from(raw)
    blank = bytearray(raw)
    blank[_FRONT.size - 8 : _FRONT.size] = bytes(8)
    if xxhash.xxh3_64_intdigest(blank) != expected:
        return None
    try:
        header = msgspec.msgpack.decode(raw[_FRONT.size : _FRONT.size + body], type=Header)
    except msgspec.DecodeError:
        return None
    return header if header.page_size > 0 else None
