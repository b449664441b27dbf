"""The interface of transports, which carry the bytes of an offer; all messages go over the connection."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mamba_transfer.frames import Connection, Limit
from mamba_transfer.outcome import PendingWriter


@dataclass(frozen=True, slots=True)
class Arrival:
    """The state of the landing memory after a transport has read into it."""

    digests: list[int]
    """Checksums of the sub-blocks in the landing memory."""
    received: int


class Transport(Protocol):
    """A way of bytes from the memory of a source into the memory of a reader."""

    @property
    def name(self) -> str:
        """Name by which the reader asks for the transport in its Hello."""
        ...

    def describe(self, pieces: Sequence[memoryview]) -> bytes:
        """Return what the reader needs to know of the source's memory; sent in the Offer."""
        ...

    def send(
        self,
        connection: Connection,
        pieces: Sequence[memoryview],
        sizes: Sequence[int],
        limit: Callable[[], Limit],
    ) -> list[int]:
        """Send `pieces`, or let the reader read them; return the checksums of sub-blocks of `sizes` bytes.

        `limit` is called after each part that the reader took, and returns the limit of the next.
        Raises PeerLost, or Stopped.
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
        """Fill `pieces`. Raises PeerLost, Stopped, or WriterPending if bytes may still land."""
        ...


class WriterPending(Exception):
    """The end of a read whose writer could not be stopped: bytes may still land."""

    def __init__(self, reason: Exception, writer: PendingWriter) -> None:
        super().__init__(str(reason))
        self.reason = reason
        self.writer = writer
