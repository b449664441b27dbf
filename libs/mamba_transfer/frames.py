"""Frames over a connected socket, with a limit on the time and size of every read and write.

A frame is a header (magic, version, length of the body) and a body. The memory for a body grows with the
bytes that arrive, so a header alone costs nothing. The socket blocks in the kernel for at most
`_SLICE_SECONDS` at a time; in between the connection looks at its limit.
"""

import math
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress

from mamba_transfer.errors import ForeignFrame, ForeignVersion, PeerLost, Stopped
from mamba_transfer.leases import Clock
from mamba_transfer.messages import VERSION

MAGIC = b"mbtr"
_HEADER = struct.Struct(">4sHI")
_SLICE_SECONDS = 0.05
_TIMEVAL = struct.pack("@ll", 0, int(_SLICE_SECONDS * 1e6))
_READ_BYTES = 1 << 16
MOST_VECTORS = 512
"""Pieces in one call of the kernel, which takes 1024 at most."""


class Limit:
    """A deadline, with a question whether the caller still wants what it waits for."""

    def __init__(
        self,
        clock: Clock,
        deadline: float,
        cancelled: Callable[[], bool] | None = None,
        patience: float = math.inf,
    ) -> None:
        """Allow work until `deadline` by `clock`, or until `cancelled` returns True.

        `patience`: seconds of a single step.
        """
        self.clock = clock
        self.deadline = deadline
        self.cancelled = cancelled
        self.patience = patience

    def check(self) -> None:
        """Return if work may go on. Raises Stopped if it was cancelled, PeerLost if its time is over."""
        if self.cancelled is not None and self.cancelled():
            raise Stopped("the transfer was cancelled")
        if self.clock() >= self.deadline:
            raise PeerLost("the peer did not answer before the deadline")

    def step(self) -> "Limit":
        """Return the limit of a single step that begins now."""
        return Limit(self.clock, min(self.deadline, self.clock() + self.patience), self.cancelled)


class Connection:
    """One end of a connection; a single thread uses it, and `close` may come from any other."""

    def __init__(self, end: socket.socket) -> None:
        """Take over a connected socket."""
        end.setblocking(True)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for name in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            end.setsockopt(socket.SOL_SOCKET, name, _TIMEVAL)
        self._socket = end

    def send_frame(self, body: bytes, limit: Limit) -> None:
        """Send one message. Raises PeerLost, or Stopped."""
        self.send([memoryview(_HEADER.pack(MAGIC, VERSION, len(body))), memoryview(body)], limit)

    def receive_frame(self, most: int, limit: Limit) -> bytearray:
        """Return the body of the next frame.

        Raises PeerLost, Stopped, ForeignVersion, or ForeignFrame if it is no frame or is above `most` bytes.
        """
        header = bytearray(_HEADER.size)
        self.receive_into(memoryview(header), limit)
        magic, version, length = _HEADER.unpack(header)
        if magic != MAGIC:
            raise ForeignFrame("the peer does not speak the transfer protocol")
        if length > most:
            raise ForeignFrame(f"a message of {length} bytes, where at most {most} are allowed")
        body = bytearray()
        while len(body) < length:
            part = bytearray(min(_READ_BYTES, length - len(body)))
            self.receive_into(memoryview(part), limit)
            body += part
        # Only now, since bytes that nobody has read would make the kernel discard the answer.
        if version != VERSION:
            raise ForeignVersion(version)
        return body

    def send(self, pieces: Sequence[memoryview], limit: Limit) -> None:
        """Send all bytes of `pieces`, at most MOST_VECTORS, without a copy. Raises PeerLost, or Stopped."""
        waiting = [piece for piece in pieces if piece.nbytes]
        while waiting:
            limit.check()
            sent = self._attempt(self._socket.sendmsg, waiting)
            while waiting and sent >= waiting[0].nbytes:
                sent -= waiting.pop(0).nbytes
            if sent:
                waiting[0] = waiting[0][sent:]

    def receive_into(self, target: memoryview, limit: Limit) -> None:
        """Fill `target` with the next bytes. Raises PeerLost, or Stopped."""
        while target.nbytes:
            limit.check()
            received = self._attempt(self._socket.recv_into, target, target.nbytes, socket.MSG_WAITALL)
            target = target[received:]

    def receive_pieces(self, pieces: Sequence[memoryview], limit: Limit) -> None:
        """Fill all of `pieces`, at most MOST_VECTORS. Raises PeerLost, or Stopped."""
        waiting = list(pieces)
        while waiting:
            limit.check()
            received = self._attempt(lambda: self._socket.recvmsg_into(waiting, 0, socket.MSG_WAITALL)[0])
            while waiting and received >= waiting[0].nbytes:
                received -= waiting.pop(0).nbytes
            if received:
                waiting[0] = waiting[0][received:]

    def close(self) -> None:
        """Close the connection, and end whatever another thread waits for on it."""
        self.interrupt()
        self._socket.close()

    def interrupt(self) -> None:
        """End whatever another thread waits for; that thread closes the connection."""
        with suppress(OSError):  # the peer was quicker
            self._socket.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _attempt(call: Callable[..., int], *arguments: object) -> int:
        """Return the bytes that one call moved; 0 if it moved none within a slice of time."""
        try:
            moved = call(*arguments)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise PeerLost(f"the connection broke: {error}") from error
        if not moved:
            raise PeerLost("the peer closed the connection")
        return moved
