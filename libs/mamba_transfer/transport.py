"""Interface of transports, which carry the bytes of a bundle; all messages go over the connection."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mamba_transfer.frames import Connection, Limit
from mamba_transfer.outcome import PendingWriter


@dataclass(frozen=True, slots=True)
class Arrival:
    """Result of a transport's read into landing memory."""

    digests: list[int]
    """Checksums of the sub-blocks in the landing memory."""
    received: int


class Transport(Protocol):
    """Means of copying bytes from the memory of a source to the landing memory of a reader."""

    @property
    def name(self) -> str:
        """Name by which a reader requests the transport in its Hello."""
        ...

    def describe(self, pieces: Sequence[memoryview]) -> bytes:
        """Return the description of the source's memory that a reader needs; it is sent in the Offer."""
        ...

    def send(
        self,
        connection: Connection,
        pieces: Sequence[memoryview],
        sizes: Sequence[int],
        limit: Callable[[], Limit],
    ) -> list[int]:
        """Send `pieces`, or let the reader read them. Return the checksums of sub-blocks of `sizes` bytes.

        `limit` is called after each part that the reader has received, and returns the limit for the next
        part. Raises PeerLost, or Stopped.
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
        """Fill `pieces`. Raises PeerLost, Stopped, or WriterPending if bytes may be written afterwards."""
        ...


class WriterPending(Exception):
    """A read ended and its writer could not be stopped: bytes may still be written to the landing memory."""

    def __init__(self, reason: Exception, writer: PendingWriter) -> None:
        super().__init__(str(reason))
        self.reason = reason
        self.writer = writer
