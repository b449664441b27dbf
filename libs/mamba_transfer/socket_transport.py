"""The default transport: the bytes follow the Offer on the same connection.

The kernel reads the source's memory and writes the landing memory without a further copy. Only the reader's
own thread writes to the landing memory, so closing the connection ends the transfer at once.
"""

from collections.abc import Callable, Iterator, Sequence

from mamba_transfer.checksums import BlockChecksums
from mamba_transfer.frames import MOST_VECTORS, Connection, Limit
from mamba_transfer.transport import Arrival

_CHUNK_BYTES = 1 << 20
"""Bytes that are transferred between two updates of a checksum: few enough to be still in the processor's
cache, and enough to keep the number of system calls low."""


class SocketTransport:
    """Transport over the connection of the messages."""

    name = "sockets"

    def describe(self, pieces: Sequence[memoryview]) -> bytes:
        """Return an empty description: the reader needs no address, since the source sends the bytes."""
        return b""

    def send(
        self,
        connection: Connection,
        pieces: Sequence[memoryview],
        sizes: Sequence[int],
        limit: Callable[[], Limit],
    ) -> list[int]:
        """Send `pieces` and return the checksums of the sub-blocks. Raises PeerLost, or Stopped."""
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
        """Fill `pieces` with the bytes that arrive. Raises PeerLost, or Stopped."""
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
