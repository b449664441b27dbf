"""The default transport: the bytes follow the Offer on the same connection.

The kernel reads the source's memory, and the bytes land in the reader's without a copy of the whole. Only the
reader's own thread writes to the landing memory, so closing the connection ends the transfer at once.
"""

from collections.abc import Callable, Iterator, Sequence

from mamba_transfer.checksums import BlockChecksums
from mamba_transfer.frames import MOST_VECTORS, Connection, Limit
from mamba_transfer.transport import Arrival, ByteMover, CheckedBytes

_CHUNK_BYTES = 1 << 20
"""Bytes of one step of a transfer, after which its limit is renewed. Python then updates checksums, too: so
few bytes may still be in the processor's cache, and so many keep the number of system calls low."""


class SocketTransport:
    """Copies states over the same connection as the messages."""

    name = "sockets"

    def __init__(self, mover: ByteMover | None = None) -> None:
        """Prepare to transfer bytes by `mover`; None = by Python, with the same bytes and checksums."""
        self._mover = mover

    def describe(self, pieces: Sequence[memoryview]) -> bytes:
        """Return an empty description: the reader needs no address, since the source sends the bytes."""
        return b""

    def send(
        self,
        connection: Connection,
        pieces: Sequence[memoryview],
        sizes: Sequence[int],
        limit: Callable[[], Limit],
    ) -> bytes:
        """Send `pieces` and return the checksums of the sub-blocks. Raises PeerLost, or Stopped."""
        if self._mover is not None and (moving := self._mover.begin(pieces, sizes, sends=True)) is not None:
            return _moved(connection, moving, limit)
        checksums = BlockChecksums(sizes)
        for chunk in _chunks(pieces):
            connection.send(chunk, limit())
            # The reader still receives what the kernel has buffered; the chunk is in the processor's cache.
            for piece in chunk:
                checksums.update(piece)
        return checksums.digests

    def receive(
        self,
        connection: Connection,
        description: bytes,
        pieces: Sequence[memoryview],
        sizes: Sequence[int],
        limit: Limit,
    ) -> Arrival:
        """Fill `pieces` with the bytes that arrive, and return their checksums. Raises PeerLost, or Stopped.

        `sizes` are the bytes of the sub-blocks. Sockets need no `description`.
        """
        if self._mover is not None and (moving := self._mover.begin(pieces, sizes, sends=False)) is not None:
            return Arrival(_moved(connection, moving, limit.step), sum(sizes))
        checksums = BlockChecksums(sizes)
        received = 0
        for chunk in _chunks(pieces):
            if len(chunk) == 1:
                connection.receive_into(chunk[0], limit.step())
            else:
                connection.receive_pieces(chunk, limit.step())
            for piece in chunk:
                checksums.update(piece)
                received += piece.nbytes
        return Arrival(checksums.digests, received)


def _moved(connection: Connection, moving: CheckedBytes, limit: Callable[[], Limit]) -> bytes:
    """Move all bytes and return the checksums; each chunk has its own limit. Raises PeerLost, or Stopped."""
    current, moved = limit(), 0
    try:
        while moving.left:
            moved += connection.move(moving.move, current)
            if moved >= _CHUNK_BYTES:
                current, moved = limit(), 0
        return moving.digests
    finally:
        moving.close()


def _chunks(pieces: Sequence[memoryview]) -> Iterator[list[memoryview]]:
    """Yield `pieces` in groups of about _CHUNK_BYTES; a larger piece is split."""
    chunk: list[memoryview] = []
    room = _CHUNK_BYTES
    for piece in pieces:
        start = 0
        while start < piece.nbytes:
            part = piece[start : start + room]
            chunk.append(part)
            start += part.nbytes
            room -= part.nbytes
            if not room or len(chunk) == MOST_VECTORS:
                yield chunk
                chunk, room = [], _CHUNK_BYTES
    if chunk:
        yield chunk
