"""The reader's side of transfers: fetches one bundle from another engine into landing memory.

Landing memory is the memory that the caller reserves for the bytes. An engine calls `fetch` in a thread of
its own. Once `fetch` has returned, nothing writes to the landing memory any more, unless the outcome names a
pending writer.
"""

import errno
import select
import socket
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from mamba_transfer.address import Address, Peer
from mamba_transfer.bundle import Buffers, pieces
from mamba_transfer.errors import (
    ForeignFrame,
    ForeignVersion,
    IncompatibleLayouts,
    PeerLost,
    Stopped,
    TransferError,
)
from mamba_transfer.frames import Connection, Limit
from mamba_transfer.layout import StateLayout
from mamba_transfer.leases import Clock
from mamba_transfer.messages import (
    MOST_DESCRIPTION_BYTES,
    MOST_HOT_BYTES,
    Abort,
    Bequest,
    Checksums,
    Done,
    Expired,
    FromReader,
    Hello,
    Hot,
    Hottest,
    Inherited,
    Leaving,
    Offer,
    Places,
    Refuse,
    Renew,
    Renewed,
    Valid,
    Wanted,
    Welcome,
    pack,
    unpack_from_source,
)
from mamba_transfer.outcome import Outcome, Verdict
from mamba_transfer.slice_plan import plan_of_pair
from mamba_transfer.socket_transport import SocketTransport
from mamba_transfer.transport import Arrival, Transport, WriterPending

Answer = TypeVar("Answer", Welcome, Offer, Checksums, Renewed, Valid, Hottest, Places, Inherited)
_MOST_FRAME_BYTES = (1 << 16) + MOST_DESCRIPTION_BYTES
_CONNECT_POLL_SECONDS = 0.05
PATIENCE_SECONDS = 10.0
"""Seconds that a peer may take for a single answer, even if the deadline of the fetch is later."""


class _Ended(Exception):
    """Ends a fetch because of the peer's answer; `outcome` is the result of the fetch."""

    def __init__(self, verdict: Verdict, detail: str = "") -> None:
        super().__init__(detail)
        self.outcome = Outcome(verdict, detail)


class TransferClient:
    """Reads states that other engines export, over the network. Several threads may use it."""

    def __init__(
        self,
        layout: StateLayout,
        *,
        transport: Transport | None = None,
        patience: float = PATIENCE_SECONDS,
        clock: Clock = time.monotonic,
    ) -> None:
        """Prepare to fetch states for an engine whose states have `layout`.

        Args:
            layout: layout of this engine's tensor-parallel rank.
            transport: transport that carries the bytes of all fetches; None = sockets.
            patience: seconds that a peer may take for a single answer.
            clock: clock of all deadlines, in seconds.
        """
        self.layout = layout
        self._transport: Transport = transport or SocketTransport()
        self._patience = patience
        self.clock = clock

    def fetch(
        self,
        peer: Peer,
        request: Wanted,
        landing: Buffers,
        *,
        deadline: float,
        cancelled: Callable[[], bool] | None = None,
    ) -> Outcome:
        """Fetch one bundle into `landing`, and return the outcome.

        Args:
            peer: the engine that has the checkpoint.
            request: name or prefix of the checkpoint, and the tokens whose pages are wanted.
            landing: buffers to write to: for the state, then for whole pages of the tokens [base, depth).
            deadline: time in seconds by the client's clock at which the fetch gives up.
            cancelled: called every 50 ms; the fetch ends once it returns True.

        Raises ValueError if `landing` does not have the size of the bundle.
        """
        limit = Limit(self.clock, deadline, cancelled, self._patience)
        _check_landing(self.layout, request, landing)
        connection = None
        try:
            connection = _connect(peer.address, limit.step())
            layout = _greet(connection, Hello(peer.incarnation, self.layout, self._transport.name), limit)
            return self._receive(connection, layout, request, landing, limit)
        except _Ended as end:
            return end.outcome
        except WriterPending as pending:
            verdict = Verdict.CANCELLED if isinstance(pending.reason, Stopped) else Verdict.LOST
            return Outcome(verdict, str(pending.reason), writer=pending.writer)
        except IncompatibleLayouts as error:
            return Outcome(Verdict.REFUSED, error.field)
        except ForeignVersion as error:
            return Outcome(Verdict.REFUSED, f"version ({error})")
        except Stopped as error:
            return Outcome(Verdict.CANCELLED, str(error))
        except TransferError as error:
            return Outcome(Verdict.LOST, str(error))
        finally:
            if connection is not None:
                connection.close()

    def hottest(self, address: Address, count: int, *, deadline: float) -> Hottest | None:
        """Return up to `count` prefixes that the engine at `address` would evict last; None = no answer.

        An engine gives no answer if it serves another model, is of an older version, cannot be reached, or
        does not answer before `deadline`, in seconds by the client's clock.
        """
        limit = Limit(self.clock, deadline, None, self._patience)
        connection = None
        try:
            connection = _connect(address, limit.step())
            _greet(connection, Hello("", self.layout), limit)
            _say(connection, Hot(count), limit)
            return _hear(connection, Hottest, limit, 2 * MOST_HOT_BYTES)
        except (TransferError, _Ended):
            return None
        finally:
            if connection is not None:
                connection.close()

    def places(self, address: Address, role: str, *, deadline: float) -> int:
        """Return how many states of this ending engine the engine at `address` takes; 0 without an answer.

        `role` is the role of this engine, and `deadline` the time in seconds by the client's clock.
        """
        answer = self._asked(
            address, Leaving(role), Places, Limit(self.clock, deadline, None, self._patience)
        )
        return answer.states if answer is not None else 0

    def bequeath(self, address: Address, bequest: Bequest, *, deadline: float) -> int:
        """Let the engine at `address` fetch states of this one, and return how many it has fetched.

        The call returns when that engine fetches no more, and 0 without an answer before `deadline`, in
        seconds by the client's clock.
        """
        answer = self._asked(address, bequest, Inherited, Limit(self.clock, deadline))
        return answer.states if answer is not None else 0

    def _asked(
        self, address: Address, question: FromReader, kind: type[Answer], limit: Limit
    ) -> Answer | None:
        """Return the answer of whichever engine is at `address` to `question`; None without an answer."""
        connection = None
        try:
            connection = _connect(address, limit.step())
            _greet(connection, Hello("", self.layout), limit)
            _say(connection, question, limit)
            return _hear(connection, kind, limit)
        except (TransferError, _Ended):
            return None
        finally:
            if connection is not None:
                connection.close()

    def renew(
        self,
        peer: Peer,
        exports: Sequence[str],
        *,
        deadline: float,
        cancelled: Callable[[], bool] | None = None,
    ) -> frozenset[str]:
        """Renew the leases of exports that are still to be fetched, and return the names of those renewed.

        The lease of an export that is missing in the result has ended, or its engine did not answer before
        `deadline`, in seconds by the client's clock. `cancelled` ends the call once it returns True.
        """
        limit = Limit(self.clock, deadline, cancelled, self._patience)
        connection = None
        try:
            connection = _connect(peer.address, limit.step())
            _greet(connection, Hello(peer.incarnation, self.layout), limit)
            _say(connection, Renew(tuple(exports)), limit)
            return frozenset(_hear(connection, Renewed, limit).exports)
        except (TransferError, _Ended):
            return frozenset()
        finally:
            if connection is not None:
                connection.close()

    def release(self, peer: Peer, export: str, *, deadline: float) -> None:
        """Give up an export that will not be fetched.

        If its engine cannot be told before `deadline`, in seconds by the client's clock, the export ends with
        its lease.
        """
        limit = Limit(self.clock, deadline, None, self._patience)
        connection = None
        try:
            connection = _connect(peer.address, limit.step())
            _greet(connection, Hello(peer.incarnation, self.layout), limit)
            _say(connection, Abort((export,)), limit)
        except (TransferError, _Ended):
            return
        finally:
            if connection is not None:
                connection.close()

    def _receive(
        self,
        connection: Connection,
        source: StateLayout,
        request: Wanted,
        landing: Buffers,
        limit: Limit,
    ) -> Outcome:
        portion = plan_of_pair(source, self.layout).portions.get(source.rank)
        if portion is None:
            return Outcome(Verdict.REFUSED, f"rank ({source.rank} sends nothing to rank {self.layout.rank})")
        sizes = portion.sizes((request.depth - request.base) // self.layout.page_size)
        _say(connection, request, limit)
        offer = _hear(connection, Offer, limit)
        if (offer.depth, offer.base, offer.length) != (request.depth, request.base, sum(sizes)):
            raise ForeignFrame(f"an offer of {offer.length} bytes for {sum(sizes)} that were asked for")
        parts = pieces(portion, "destination", self.layout, landing)
        arrival: Arrival = self._transport.receive(connection, offer.description, parts, sizes, limit)
        if _hear(connection, Checksums, limit, len(arrival.digests)).digests != arrival.digests:
            return Outcome(Verdict.CORRUPT, "a checksum differs", arrival.received)
        _say(connection, Done(), limit)
        _hear(connection, Valid, limit)
        return Outcome(Verdict.VALID, received=arrival.received)


def _check_landing(layout: StateLayout, request: Wanted, landing: Buffers) -> None:
    tokens = request.depth - request.base
    if tokens < 0 or tokens % layout.page_size:
        raise ValueError(f"tokens {request.base} to {request.depth} are no whole pages of {layout.page_size}")
    pages = sum(buffer.nbytes for buffer in landing[1:])
    if not landing or (landing[0].nbytes, pages) != (
        layout.state_bytes,
        tokens // layout.page_size * layout.page_bytes,
    ):
        raise ValueError(f"the landing memory is not a state and the pages of {tokens} tokens")


def _connect(address: Address, limit: Limit) -> Connection:
    """Return a connection to the server at `address`. Raises PeerLost, or Stopped."""
    end = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        end.setblocking(False)
        code = end.connect_ex(tuple(address))
        poller = select.poll()
        poller.register(end, select.POLLOUT)
        while code == errno.EINPROGRESS:
            limit.check()
            if poller.poll(1000 * _CONNECT_POLL_SECONDS):
                code = end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                break
        if code:
            raise PeerLost(f"no connection to {address}: {errno.errorcode.get(code, code)}")
        return Connection(end)
    except BaseException:
        end.close()
        raise


def _greet(connection: Connection, hello: Hello, limit: Limit) -> StateLayout:
    _say(connection, hello, limit)
    return _hear(connection, Welcome, limit).layout


def _say(connection: Connection, message: FromReader, limit: Limit) -> None:
    connection.send_frame(pack(message), limit.step())


def _hear(connection: Connection, kind: type[Answer], limit: Limit, room: int = 0) -> Answer:
    """Return the peer's next message, which has to be of the expected `kind`; ignore messages Renewed.

    Raises _Ended for Expired and Refuse, ForeignFrame for any other message, PeerLost, or Stopped.
    """
    while True:
        message = unpack_from_source(connection.receive_frame(_MOST_FRAME_BYTES + room, limit.step()))
        if isinstance(message, kind):
            return message
        # A transport may have renewed the lease during its read; the answer to Done says whether it is live.
        if not isinstance(message, Renewed):
            break
    if isinstance(message, Expired):
        raise _Ended(Verdict.EXPIRED)
    if isinstance(message, Refuse):
        raise _Ended(Verdict.REFUSED, message.field)
    raise ForeignFrame(f"a {type(message).__name__}, where a {kind.__name__} was due")
