"""The default transport: the bytes follow the offer on the same connection, from memory to memory.

The kernel copies straight from the source's memory and straight into the landing memory. Closing the
connection ends the transfer: the reader's own thread writes the landing memory, and nothing else does.
"""

from collections.abc import Callable, Iterator, Sequence

from mamba_transfer.checksums import BlockChecksums
from mamba_transfer.frames import MOST_VECTORS, Connection, Limit
from mamba_transfer.transport import Arrival

_CHUNK_BYTES = 1 << 20
"""Bytes between two checksums: few enough to be in the cache still, many enough for few calls."""


class SocketTransport:
    """Plain sockets."""

    name = "sockets"

    def describe(self, pieces: Sequence[memoryview]) -> bytes:
        """Return nothing: the bytes come without being asked for."""
        return b""

    def send(
        self,
        connection: Connection,
        pieces: Sequence[memoryview],
        sizes: Sequence[int],
        limit: Callable[[], Limit],
    ) -> list[int]:
        """Send all bytes; return the checksums. Raises PeerLost, or Stopped."""
        checksums = BlockChecksums(sizes)
        for chunk in _chunks(pieces):
            connection.send(chunk, limit())
            # The reader is still busy with what the kernel holds for it, and the chunk is in the cache now.
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
        """Fill `pieces`. Raises PeerLost, or Stopped."""
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
    """Yield the pieces in groups of about _CHUNK_BYTES; large ones are cut."""
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
