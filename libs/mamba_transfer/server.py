"""The transfer server of an engine: one thread accepts connections, and each reader has a thread.

The engine passes an `ExportSource`, and keeps the memory of an export locked while the export is open. If a
reader dies, stops or sends invalid messages, its export is closed when the lease ends, at the latest. `close`
ends all threads.
"""

import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

import structlog

from mamba_transfer.address import Address
from mamba_transfer.errors import ConnectionFailed, ForeignFrame, ForeignVersion, IncompatibleLayouts
from mamba_transfer.exports import ExportSource, StateHeir
from mamba_transfer.frames import Connection, Limit
from mamba_transfer.layout import StateLayout
from mamba_transfer.leases import Clock
from mamba_transfer.messages import (
    MOST_TOKENS,
    Expired,
    FromSource,
    Hello,
    Refuse,
    Welcome,
    pack,
    unpack_from_reader,
)
from mamba_transfer.session import ANSWER_SECONDS, ReaderSession
from mamba_transfer.slice_plan import plan_of_pair
from mamba_transfer.socket_transport import SocketTransport
from mamba_transfer.transport import Transport

log = structlog.get_logger("mambaserve.transfer")
MOST_CONNECTIONS = 64
MOST_FRAME_BYTES = 1 << 16
"""Maximum size in bytes of a message without token ids."""


class TransferServer:
    """Serves an engine's exports to other engines.

    `start` opens the port; `close` ends all connections.
    """

    def __init__(
        self,
        layout: StateLayout,
        incarnation: str,
        source: ExportSource,
        *,
        heir: StateHeir | None = None,
        transports: Sequence[Transport] = (),
        most_tokens: int = MOST_TOKENS,
        most_connections: int = MOST_CONNECTIONS,
        clock: Clock = time.monotonic,
    ) -> None:
        """Create a server that does not listen yet.

        Args:
            layout: layout of this engine's tensor-parallel rank.
            incarnation: name of this run of the engine; requests for another one get Expired.
            source: the engine's exports.
            heir: the engine as an heir of peers that end; None = it takes none of their states.
            transports: transports that readers may use besides sockets.
            most_tokens: number of tokens of the longest prefix; the connection of a longer request is closed.
            most_connections: maximum number of readers at a time; further connections are closed at once.
            clock: clock of the leases and of all limits, in seconds.
        """
        self.layout = layout
        self.incarnation = incarnation
        self._source, self._heir = source, heir
        self._transports: dict[str, Transport] = {
            each.name: each for each in (SocketTransport(), *transports)
        }
        self._most_frame = MOST_FRAME_BYTES + 4 * most_tokens
        self._most_connections = most_connections
        self._clock = clock
        self._closing = threading.Event()
        self._one = threading.Lock()
        self._readers: dict[threading.Thread, Connection] = {}
        self._listener: socket.socket | None = None
        self._acceptor: threading.Thread | None = None

    def start(self, host: str, port: int) -> Address:
        """Listen on `host`, an IP address, and return the address; port 0 = any free one. Raises OSError.

        The host `::` stands for every address of this machine, including IPv4.
        """
        everywhere = host == "::"
        if everywhere and not socket.has_dualstack_ipv6():
            host = "0.0.0.0"  # noqa: S104 - requested; a kernel without IPv6 has no other
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server(
            (host, port),
            family=family,
            backlog=self._most_connections,
            dualstack_ipv6=everywhere and family == socket.AF_INET6,
        )
        self._listener = listener
        self._acceptor = threading.Thread(target=self._accept, args=(listener,), name="transfer", daemon=True)
        self._acceptor.start()
        return Address(*listener.getsockname()[:2])

    @property
    def connections(self) -> int:
        """Number of connected readers."""
        with self._one:
            return len(self._readers)

    def close(self) -> None:
        """Close the port and all connections, and wait until no thread reads an export any more."""
        self._closing.set()
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # makes the accept call of the other thread return
            assert self._acceptor is not None
            self._acceptor.join()
            self._listener.close()
        with self._one:
            readers = list(self._readers.items())
        for thread, connection in readers:
            connection.interrupt()
            thread.join()

    def _accept(self, listener: socket.socket) -> None:
        while not self._closing.is_set():
            try:
                end, _ = listener.accept()
                connection = Connection(end)
            except OSError:
                # The listener is closed, the process is out of descriptors, or the reader has left already.
                self._closing.wait(0.05)
                continue
            with self._one:
                if len(self._readers) >= self._most_connections or self._closing.is_set():
                    connection.close()
                    continue
                thread = threading.Thread(
                    target=self._serve, args=(connection,), name="transfer-reader", daemon=True
                )
                self._readers[thread] = connection
            self._begin(thread, connection)

    def _begin(self, thread: threading.Thread, connection: Connection) -> None:
        try:
            thread.start()
        except RuntimeError as error:
            log.warning("a reader is turned away: the system gives no thread", error=str(error))
            with self._one:
                del self._readers[thread]
            connection.close()

    def _serve(self, connection: Connection) -> None:
        try:
            # The source learns of a lost reader when its export is closed. A peer that sends no valid
            # message has no export, and must not fill the log.
            with suppress(ConnectionFailed):
                self._converse(connection)
        except Exception:
            log.exception("a transfer failed; its reader computes the prefix itself")
        finally:
            with self._one:
                del self._readers[threading.current_thread()]
            connection.close()

    def _converse(self, connection: Connection) -> None:
        limit = self._limit()
        try:
            hello = unpack_from_reader(connection.receive_frame(MOST_FRAME_BYTES, limit))
        except ForeignVersion:
            # The header of the answer has the version of this server, all that such a reader can decode.
            return self._answer(connection, Refuse("version"))
        if not isinstance(hello, Hello):
            raise ForeignFrame("the first message of a reader is a Hello")
        if hello.incarnation and hello.incarnation != self.incarnation:
            return self._answer(connection, Expired())
        if (transport := self._transports.get(hello.transport)) is None:
            offered = ", ".join(self._transports)
            return self._answer(
                connection,
                Refuse(
                    f"transport ({offered} here, {hello.transport} there): give both engines one "
                    "--transfer-transport"
                ),
            )
        try:
            portion = plan_of_pair(self.layout, hello.layout).portions.get(self.layout.rank)
        except IncompatibleLayouts as error:
            return self._answer(connection, Refuse(error.field))
        if portion is None:
            return self._answer(connection, Refuse(f"rank ({self.layout.rank} sends nothing)"))
        self._answer(connection, Welcome(self.layout))
        session = ReaderSession(
            connection,
            self._source,
            self.layout,
            portion,
            transport,
            incarnation=self.incarnation,
            clock=self._clock,
            closing=self._closing.is_set,
            most_frame=self._most_frame,
            heir=self._heir,
        )
        return session.run()

    def _answer(self, connection: Connection, message: FromSource) -> None:
        connection.send_frame(pack(message), self._limit())

    def _limit(self) -> Limit:
        return Limit(self._clock, self._clock() + ANSWER_SECONDS, self._closing.is_set)
