"""Interface of transports, which carry the bytes of a bundle; all messages go over the connection."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mamba_transfer.frames import Connection, Limit
from mamba_transfer.outcome import PendingWriter


@dataclass(frozen=True, slots=True)
class Arrival:
    """Result of a transport's read into landing memory."""

    digests: bytes
    """Checksums of the sub-blocks in the landing memory, as `Checksums` has them."""
    received: int


class Transport(Protocol):
    """Copies bytes from the memory of a source to the landing memory of a reader."""

    @property
    def name(self) -> str:
        """Name by which a reader requests the transport in its Hello."""
        ...

    def describe(self, pieces: Sequence[memoryview]) -> bytes:
        """Return the description of the source's memory for the reader, which is sent in the Offer."""
        ...

    def send(
        self,
        connection: Connection,
        pieces: Sequence[memoryview],
        sizes: Sequence[int],
        limit: Callable[[], Limit],
    ) -> bytes:
        """Send `pieces`, or let the reader read them. Return the checksums of sub-blocks of `sizes` bytes.

        They are packed as in `Checksums`. `limit` is called before each part and returns the limit for it;
        each call is a sign that the reader still receives. Raises PeerLost, or Stopped.
        """
        ...

    def receive(
        self,
        connection: Connection,
        description: bytes,
        pieces: Sequence[memoryview],
        sizes: Sequence[int],
        limit: Limit,
    ) -> Arrival:
        """Fill `pieces`, and return the checksums of their sub-blocks.

        `description` is what the source's `describe` returned, and `sizes` are the bytes of the sub-blocks.
        Raises PeerLost, Stopped, or WriterPending if bytes may be written afterwards.
        """
        ...


class CheckedBytes(Protocol):
    """Moves bytes between a socket and memory, and computes their checksums as they pass."""

    @property
    def left(self) -> int:
        """Number of bytes that have not passed yet."""
        ...

    @property
    def digests(self) -> bytes:
        """Checksums of the sub-blocks, once all bytes have passed, as `Checksums` has them."""
        ...

    def move(self, socket: int) -> int:
        """Move bytes for about 50 ms at most, and return their number; 0 = the peer has closed.

        `socket` is the file descriptor of a blocking socket with a timeout in the kernel. Raises
        BlockingIOError if no byte has moved before the timeout, or another OSError.
        """
        ...

    def close(self) -> None:
        """Free the memory that the transfer itself needs; the memory of the pieces stays the caller's."""
        ...


class ByteMover(Protocol):
    """Moves bytes and computes their checksums in one pass over memory, in machine code."""

    def begin(
        self, pieces: Sequence[memoryview], sizes: Sequence[int], *, sends: bool
    ) -> CheckedBytes | None:
        """Prepare to send `pieces`, or to fill them; None = the machine code cannot move them.

        `sizes` are the bytes of the sub-blocks whose checksums are wanted.
        """
        ...


class WriterPending(Exception):
    """A read ended although its writer could not be stopped.

    The writer may still write to the landing memory.
    """

    def __init__(self, reason: Exception, writer: PendingWriter) -> None:
        super().__init__(str(reason))
        self.reason = reason
        self.writer = writer
