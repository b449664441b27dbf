"""`SessionFile`: a conversation that a user keeps in a file, so that an engine can continue it later.

A session file begins with a record in the format of the disk tier, which contains all pages itself. The notes
(token ids, salt, conversation, model, date) follow, and then a footer with the length and the checksum of the
notes, so that a file that ends too early is noticed. Engines write and read session files, and the command
line lists them. This module neither opens nor removes files.
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
import xxhash

from mamba_prefix.page_chain import PageChain
from mamba_tier.bundle_shape import BundleShape
from mamba_tier.byte_row import Buffers, ByteRow, checksum
from mamba_tier.disk_folder import read_all, read_header, write_all
from mamba_tier.errors import SessionDamaged, SessionForeign
from mamba_tier.prefix_names import PrefixNames
from mamba_tier.record_header import PART_BYTES, Header, Part, encoded, packed, part_pages, parts, unpacked

MAGIC = b"mambasn\n"
NOTES = 1
"""Version of the notes. It must be raised whenever the meaning of a note changes."""
_FOOTER = struct.Struct("<QQ8s")
MOST_NOTES = 256 << 20
"""Maximum size of the notes in bytes."""


class SessionNotes(msgspec.Struct, frozen=True):
    """The notes of a session file: everything about its session besides the state and the pages."""

    model: str
    """Name under which the engine served the model."""
    saved_at: float
    """Time of the save, in seconds since 1970 (UTC)."""
    salt: str
    """Salt of the prefix: text that keeps the cached prefixes of different clients apart."""
    token_ids: bytes
    """Token ids of the prefix, 4 bytes each, little-endian."""
    conversation: bytes
    """The conversation, as a JSON object with `messages` or `prompt`."""
    version: int = NOTES

    @property
    def tokens(self) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """Token ids of the prefix, as integers."""
        return np.frombuffer(self.token_ids, "<i4").astype(np.int32)


@dataclass(frozen=True, slots=True)
class SessionFile:
    """A session file whose header and notes are valid. Its payload was not verified."""

    header: Header
    notes: SessionNotes
    start: int
    """Offset of the payload in the file, in bytes."""

    @property
    def shape(self) -> BundleShape:
        """Sizes and identity of the bundle in the file."""
        header = self.header
        return BundleShape(
            header.fingerprint, header.layout, header.page_size, header.state_bytes, header.page_bytes
        )

    def check_shape(self, shape: BundleShape) -> None:
        """Check that an engine of `shape` can use the state in the file. Raises SessionForeign."""
        header = self.header
        if header.fingerprint != shape.fingerprint:
            raise SessionForeign(
                f"the session was saved by an engine of other weights or number types (model "
                f"{self.notes.model!r}, fingerprint {header.fingerprint[:16]}; this engine has "
                f"{shape.fingerprint[:16]}): load it into an engine with the model and --dtype of the save"
            )
        if (header.layout, header.page_size) != (shape.layout, shape.page_size):
            raise SessionForeign(
                f"the session has pages of {header.page_size} tokens and another layout of the state; this "
                f"engine has pages of {shape.page_size}: start it with the --page-size, --state-dtype and "
                "--dtype of the save"
            )


def write_session(
    descriptor: int, shape: BundleShape, notes: SessionNotes, state: Buffers, pages: Buffers
) -> int:
    """Write a session file and return its size in bytes. Raises OSError.

    `state` and `pages` hold the bytes of the state and of the pages of all tokens in the notes.
    """
    tokens = notes.tokens
    depth, row = len(tokens), ByteRow([*state, *pages])
    names = _names(shape, notes)
    sums = packed([checksum(row.cut(part.start, part.length)) for part in _parts(shape, depth)])
    header = Header(
        shape.fingerprint, shape.layout, True, shape.page_size, shape.state_bytes, shape.page_bytes,
        names.key(depth), names.digest(depth), 0, depth, depth, PART_BYTES, part_pages(shape), sums, b"",
    )  # fmt: skip
    front, back = encoded(header), msgspec.msgpack.encode(notes)
    footer = _FOOTER.pack(len(back), xxhash.xxh3_64_intdigest(back), MAGIC)
    write_all(descriptor, [memoryview(front), *state, *pages, memoryview(back), memoryview(footer)])
    return len(front) + len(row) + len(back) + len(footer)


def read_session(descriptor: int) -> SessionFile:
    """Read the header and the notes of a session file. Raises SessionDamaged, OSError."""
    front = read_header(descriptor)
    if front is None:
        raise SessionDamaged("the file is no session, or its first bytes are damaged")
    header, start = front
    whole = header.is_record and not header.first and header.depth > 0 and not header.block_keys
    if not whole or header.part_bytes != PART_BYTES or header.depth % header.page_size:
        raise SessionDamaged("the file is a part of a disk cache and no session")
    session = SessionFile(header, _read_notes(descriptor, start + header.payload_bytes), start)
    _check_notes(session)
    return session


def _read_notes(descriptor: int, end: int) -> SessionNotes:
    """Read the notes, which begin at offset `end`, behind the payload. Raises SessionDamaged, OSError."""
    size = os.fstat(descriptor).st_size
    raw = os.pread(descriptor, _FOOTER.size, max(0, size - _FOOTER.size))
    if size < end + _FOOTER.size or len(raw) < _FOOTER.size or raw[-len(MAGIC) :] != MAGIC:
        raise SessionDamaged(f"the file is truncated or has bytes behind its end: {size} bytes")
    length, expected, _ = _FOOTER.unpack(raw)
    if length > MOST_NOTES or end + length + _FOOTER.size != size:
        raise SessionDamaged(f"the file has {size} bytes, and its header and footer give another size")
    back = os.pread(descriptor, length, end)
    if xxhash.xxh3_64_intdigest(back) != expected:
        raise SessionDamaged("the notes of the session are damaged")
    try:
        return msgspec.msgpack.decode(back, type=SessionNotes)
    except msgspec.DecodeError as error:
        raise SessionDamaged("the notes of the session are of another version") from error


def _check_notes(session: SessionFile) -> None:
    """Check that the notes and the header describe the same session. Raises SessionDamaged."""
    header, notes = session.header, session.notes
    if notes.version != NOTES or len(notes.token_ids) != 4 * header.depth:
        raise SessionDamaged("the notes of the session do not fit its state")
    names = _names(session.shape, notes)
    if (names.key(header.depth), names.digest(header.depth)) != (header.key, header.digest):
        raise SessionDamaged("the state in the file belongs to other tokens than its notes")
    if len(header.sums) != 8 * sum(1 for _ in _parts(session.shape, header.depth)):
        raise SessionDamaged("the header of the session lacks checksums")


def read_payload(
    descriptor: int, session: SessionFile, state: Buffers, pages: Buffers, base: int = 0
) -> bool:
    """Read the state, and the pages of the tokens [base, depth), into landing buffers.

    Return False if the file ends early or a checksum does not match; the content of the buffers is then
    undefined. Raises OSError.
    """
    shape, kept = session.shape, ByteRow([*state, *pages])
    skipped = shape.pages_bytes(base)
    for part, target in _targets(shape, session.header.depth, kept, skipped):
        if not read_all(descriptor, target, session.start + part.start):
            return False
        if checksum(target) != unpacked(session.header.sums)[part.number]:
            return False
    return True


def is_whole(descriptor: int, session: SessionFile) -> bool:
    """Return whether the payload is complete and every part of it matches its checksum. Raises OSError."""
    sums = unpacked(session.header.sums)
    for part in _parts(session.shape, session.header.depth):
        piece = memoryview(bytearray(part.length))
        if not read_all(descriptor, [piece], session.start + part.start):
            return False
        if checksum([piece]) != sums[part.number]:
            return False
    return True


def _parts(shape: BundleShape, depth: int) -> Iterator[Part]:
    return parts(shape, depth, is_record=True)


def _names(shape: BundleShape, notes: SessionNotes) -> PrefixNames:
    chain = PageChain(shape.page_size, shape.fingerprint)
    return PrefixNames(chain, shape.block_tokens, notes.tokens, notes.salt)


def _targets(
    shape: BundleShape, depth: int, kept: ByteRow, skipped: int
) -> Iterator[tuple[Part, list[memoryview]]]:
    """Yield each part of which at least some bytes are kept, with the buffers to read it into.

    `skipped` is the number of bytes at the beginning of the pages for which `kept` has no room.
    """
    state_bytes = shape.state_bytes
    for part in _parts(shape, depth):
        if part.start < state_bytes:
            yield part, kept.cut(part.start, part.length)
            continue
        start = part.start - skipped
        if start >= state_bytes:
            yield part, kept.cut(start, part.length)
        elif start + part.length > state_bytes:
            # The checksum covers the whole part, so the pages before the base are read and discarded.
            unwanted = memoryview(bytearray(state_bytes - start))
            yield part, [unwanted, *kept.cut(state_bytes, part.length - unwanted.nbytes)]
