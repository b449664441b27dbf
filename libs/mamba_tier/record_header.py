"""`Header`: the first bytes of a file of the disk tier, which identify and verify all others.

A file is a header, the bytes of a state (records alone) and the bytes of pages. The header is padded to whole
blocks of the file system and has a checksum of its own, padding included; a checksum of each part of the
payload stands in it. Pure.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np
import xxhash

from mamba_tier.bundle_shape import BundleShape

FORMAT = 1
"""Version of the format of files. Whoever changes what a file means raises it."""
MAGIC = b"mambatr\n"
ALIGNMENT = 4096
PART_BYTES = 1 << 20
"""Bytes of a part of a state: small enough to be still in the processor's cache when it is verified."""
PAGES_PART_BYTES = 256 << 10
"""Bytes of a part of several pages: a read from within such a part reads it from its beginning."""
_FRONT = struct.Struct("<8sIIIIQ")
_LARGEST = 64 << 20


class Part(NamedTuple):
    """A part of a payload with a checksum of its own: bytes [start, start + length)."""

    number: int
    start: int
    length: int


class Header(msgspec.Struct, frozen=True, array_like=True):
    """Facts about one file. A block has no state and no blocks."""

    fingerprint: str
    layout: str
    is_record: bool
    """Whether the file has a state; a block of pages has none."""
    page_size: int
    state_bytes: int
    page_bytes: int
    key: int
    digest: bytes
    first: int
    depth: int
    tokens: int
    """Tokens of recomputation that the record saves."""
    part_bytes: int
    """Bytes of a part of the state."""
    part_pages: int
    """Pages of a part of the pages."""
    sums: bytes
    """XXH3 of each part, 8 bytes each: parts of the state, then of the pages."""
    block_keys: bytes
    """Chain hashes of the blocks of [0, first), 8 bytes each."""

    @property
    def payload_bytes(self) -> int:
        """Return the number of bytes behind the header."""
        return self.state_bytes + (self.depth - self.first) // self.page_size * self.page_bytes


def parts(shape: BundleShape, tokens: int, *, is_record: bool) -> Iterator[Part]:
    """Return the parts of the payload of an item with the pages of `tokens` tokens, in order."""
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
    """Return the number of pages that have one checksum together."""
    return max(1, min(shape.block_pages, PAGES_PART_BYTES // max(1, shape.page_bytes)))


def packed(numbers: list[int] | tuple[int, ...]) -> bytes:
    """Pack 64-bit numbers."""
    return np.array(numbers, "<u8").tobytes()


def unpacked(raw: bytes) -> list[int]:
    """Return the numbers of `packed`."""
    numbers: list[int] = np.frombuffer(raw, "<u8").tolist()
    return numbers


def encoded(header: Header) -> bytes:
    """Return the bytes of a header, a multiple of the alignment."""
    body = msgspec.msgpack.encode(header)
    total = -(-(_FRONT.size + len(body)) // ALIGNMENT) * ALIGNMENT
    raw = bytearray(total)
    raw[_FRONT.size : _FRONT.size + len(body)] = body
    _FRONT.pack_into(raw, 0, MAGIC, FORMAT, total, len(body), 0, 0)
    _FRONT.pack_into(raw, 0, MAGIC, FORMAT, total, len(body), 0, xxhash.xxh3_64_intdigest(raw))
    return bytes(raw)


def header_bytes(raw: bytes) -> int | None:
    """Return the length of the header that `raw` begins with; None = no header of this format."""
    if len(raw) < _FRONT.size:
        return None
    magic, version, total, body, reserved, _ = _FRONT.unpack_from(raw)
    fits = _FRONT.size + body <= total <= _LARGEST and not total % ALIGNMENT
    return total if magic == MAGIC and version == FORMAT and not reserved and fits else None


def decoded(raw: bytes) -> Header | None:
    """Return the header of exactly these bytes; None = the bytes are damaged."""
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
