"""Session of one reader after its Hello: the server's answers to fetches, renewals and aborts.

The thread of the connection runs it. However the session ends, its open export is closed exactly once, after
the last read of its memory.
"""

import math
from collections.abc import Callable

from mamba_transfer.bundle import pieces
from mamba_transfer.errors import ForeignFrame
from mamba_transfer.exports import ExportSource, OpenExport, StateHeir
from mamba_transfer.frames import Connection, Limit
from mamba_transfer.layout import StateLayout
from mamba_transfer.leases import Clock
from mamba_transfer.messages import (
    MOST_HOT_BYTES,
    Abort,
    Bequest,
    Checksums,
    Done,
    Expired,
    FromReader,
    FromSource,
    Hello,
    Hot,
    HotPrefix,
    Hottest,
    Inherited,
    Leaving,
    Offer,
    Places,
    Renew,
    Renewed,
    Valid,
    Wanted,
    pack,
    unpack_from_reader,
)
from mamba_transfer.slice_plan import Portion
from mamba_transfer.transport import Transport

ANSWER_SECONDS = 5.0
"""Seconds that a reader may take to send its Hello, and to receive an answer."""
IDLE_SECONDS = 60.0
"""Seconds for which a reader without an open export may send nothing."""


class ReaderSession:
    """Answers one reader of the transfer server, which has at most one open export at a time."""

    def __init__(
        self,
        connection: Connection,
        source: ExportSource,
        layout: StateLayout,
        portion: Portion,
        transport: Transport,
        *,
        incarnation: str,
        clock: Clock,
        closing: Callable[[], bool],
        most_frame: int,
        heir: StateHeir | None = None,
    ) -> None:
        """Prepare the session of a reader that has received its Welcome.

        Args:
            connection: the connection, which the server closes.
            source: the engine's exports.
            layout: layout of the engine.
            portion: bytes of each bundle that this engine's rank sends to the reader.
            transport: transport that carries the bytes.
            incarnation: name of this run of the engine.
            clock: clock of leases and limits, in seconds.
            closing: called every 50 ms; the session ends once it returns True.
            most_frame: maximum size in bytes of a message of the reader.
            heir: the engine as an heir of readers that end; None = it takes none of their states.
        """
        self._connection = connection
        self._source = source
        self._layout = layout
        self._portion = portion
        self._transport = transport
        self._incarnation = incarnation
        self._clock = clock
        self._closing = closing
        self._most_frame, self._heir = most_frame, heir
        self._export: OpenExport | None = None

    def run(self) -> None:
        """Answer the reader's messages until the connection ends. The method always ends with an exception.

        Raises ConnectionFailed: PeerLost if the reader has closed the connection, Stopped if the server is
        closing or the reader was idle for too long, ForeignFrame for a message that is not allowed. An open
        export is closed first.
        """
        try:
            while True:
                self._handle(self._next())
        finally:
            self._end(delivered=False)

    def _next(self) -> FromReader:
        """Return the reader's next message, and close the open export if its lease ends before."""
        idle_until = self._clock() + IDLE_SECONDS

        def over() -> bool:
            nonlocal idle_until
            if self._export is not None and not self._export.lease.live:
                self._end(delivered=False)
                idle_until = self._clock() + IDLE_SECONDS
            return self._closing() or (self._export is None and self._clock() >= idle_until)

        limit = Limit(self._clock, math.inf, over)
        return unpack_from_reader(self._connection.receive_frame(self._most_frame, limit))

    def _handle(self, message: FromReader) -> None:
        match message:
            case Wanted():
                self._fetch(message)
            case Renew(exports):
                alive = tuple(export for export in exports if self._renew(export))
                self._answer(Renewed(alive))
            case Done():
                live = self._export is not None and self._export.lease.live
                self._end(delivered=live)
                self._answer(Valid() if live else Expired())
            case Abort(exports):
                self._end(delivered=False)
                for export in exports:
                    self._source.release(export)
            case Hot(count):
                self._answer(Hottest(self._incarnation, self._hottest(count)))
            case Leaving(role):
                self._answer(Places(self._heir.places(role) if self._heir is not None else 0))
            case Bequest():
                self._answer(Inherited(self._heir.inherit(message) if self._heir is not None else 0))
            case Hello():
                raise ForeignFrame("a second Hello")

    def _fetch(self, request: Wanted) -> None:
        if self._export is not None:
            raise ForeignFrame("a Fetch while another export is open")
        if not request.sound:
            raise ForeignFrame(
                f"a Fetch of tokens {request.base} to {request.depth} whose range or token ids are wrong"
            )
        export = self._export = self._source.open(request)
        if export is None:
            return self._answer(Expired())
        parts = pieces(self._portion, "source", self._layout, export.buffers)
        sizes = self._portion.sizes((export.depth - export.base) // self._layout.page_size)
        offer = Offer(
            depth=export.depth,
            base=export.base,
            length=sum(sizes),
            lease_seconds=export.lease.seconds,
            description=self._transport.describe(parts),
        )
        self._answer(offer)

        def limit() -> Limit:
            # A reader that receives bytes still wants the export, so each part renews the lease.
            export.lease.renew()
            return self._limit(export.lease.remaining)

        digests = self._transport.send(self._connection, parts, sizes, limit)
        return self._answer(Checksums(digests))

    def _hottest(self, count: int) -> tuple[HotPrefix, ...]:
        """Return the most valuable prefixes: as many as `count`, or as one answer can hold."""
        prefixes, room = [], MOST_HOT_BYTES
        for prefix in self._source.hottest(count)[:count]:
            room -= len(prefix.token_ids)
            if room < 0:
                break
            prefixes.append(prefix)
        return tuple(prefixes)

    def _renew(self, export: str) -> bool:
        if export:
            return self._source.renew(export)
        return self._export is not None and self._export.lease.renew()

    def _end(self, *, delivered: bool) -> None:
        export, self._export = self._export, None
        if export is not None:
            self._source.close(export, delivered=delivered)

    def _answer(self, message: FromSource) -> None:
        self._connection.send_frame(pack(message), self._limit(ANSWER_SECONDS))

    def _limit(self, seconds: float) -> Limit:
        return Limit(self._clock, self._clock() + seconds, self._closing)
