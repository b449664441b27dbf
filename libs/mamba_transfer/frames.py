"""Frames: messages over a connected socket, with a limit on the time and the size of each.

A frame is a header (magic bytes, version of the protocol, length of the body) and a body. Memory for the body
is allocated as its bytes arrive, so that a header that announces a large body costs no memory. A system call
blocks for at most `_SLICE_SECONDS`; between two calls the connection checks its limit.
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
_NEAR_BUFFER_BYTES = 384 << 10
"""Half of the bytes that the kernel buffers for the sender of a connection within one machine. By its own
tuning they are several MiB, which leave the second cache of a core before they are received and summed.
Connections to other machines keep that tuning: they need buffers for all bytes that are on their way."""
MOST_VECTORS = 512
"""Number of buffers that one system call gets; the kernel accepts at most 1024."""


def _is_within_machine(end: socket.socket) -> bool:
    """Return whether both ends of a connected socket have one IP address."""
    try:
        own, peer = end.getsockname(), end.getpeername()
    except OSError:  # the peer has left already
        return False
    return isinstance(own, tuple) and bool(own[0] == peer[0])


class Limit:
    """Ends a transfer at a deadline, or when a callback says that the caller cancels it."""

    def __init__(
        self,
        clock: Clock,
        deadline: float,
        cancelled: Callable[[], bool] | None = None,
        patience: float = math.inf,
    ) -> None:
        """Allow work until `deadline` by `clock`, or until `cancelled` returns True.

        `patience` is the number of seconds that a single step may take.
        """
        self.clock = clock
        self.deadline = deadline
        self.cancelled = cancelled
        self.patience = patience

    def check(self) -> None:
        """Return if work may continue. Raises Stopped after a cancellation, PeerLost after the deadline."""
        if self.cancelled is not None and self.cancelled():
            raise Stopped("the transfer was cancelled")
        if self.clock() >= self.deadline:
            raise PeerLost("the peer did not answer before the deadline")

    def step(self) -> "Limit":
        """Return the limit for one step that begins now: it ends after `patience`, or at the deadline."""
        return Limit(self.clock, min(self.deadline, self.clock() + self.patience), self.cancelled)


class Connection:
    """Sends and receives frames over a connected socket.

    One thread uses it; any thread may call `close` and `interrupt`.
    """

    def __init__(self, end: socket.socket) -> None:
        """Take over the connected socket `end`; `close` closes it."""
        end.setblocking(True)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for name in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            end.setsockopt(socket.SOL_SOCKET, name, _TIMEVAL)
        if _is_within_machine(end):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _NEAR_BUFFER_BYTES)
        self._socket = end

    def send_frame(self, body: bytes, limit: Limit) -> None:
        """Send one message with the body `body`. Raises PeerLost, or Stopped."""
        self.send([memoryview(_HEADER.pack(MAGIC, VERSION, len(body))), memoryview(body)], limit)

    def receive_frame(self, most: int, limit: Limit) -> bytearray:
        """Return the body of the next message.

        Raises PeerLost, Stopped, ForeignVersion, or ForeignFrame if the bytes are no frame, or have a body of
        more than `most` bytes.
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
        # The body is read first: a close with unread bytes would make the kernel drop our answer.
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

    def move(self, mover: Callable[[int], int], limit: Limit) -> int:
        """Call `mover` with the file descriptor of the socket, and return how many bytes it moved.

        `mover` moves bytes for about one slice of time. If none can be moved in that time, `mover` raises
        BlockingIOError and this method returns 0. If the peer has closed the connection, `mover` returns 0
        and this method raises PeerLost. Raises PeerLost after the deadline, too, and Stopped.
        """
        limit.check()
        return self._attempt(mover, self._socket.fileno())

    def close(self) -> None:
        """Close the connection. A call of another thread that waits for bytes fails at once."""
        self.interrupt()
        self._socket.close()

    def interrupt(self) -> None:
        """Make a waiting call of another thread fail at once, so that the thread closes the connection."""
        with suppress(OSError):  # the peer has closed the connection already
            self._socket.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _attempt(call: Callable[..., int], *arguments: object) -> int:
        """Return the number of bytes that one system call transferred; 0 if it timed out after one slice.

        Raises PeerLost.
        """
        try:
            moved = call(*arguments)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise PeerLost(f"the connection broke: {error}") from error
        if not moved:
            raise PeerLost("the peer closed the connection")
        return moved
