"""One connection of our HTTP server: uvicorn's protocol over httptools, with limits of size and time.

All steps of a request are here. uvicorn contributes the messages of the answer, the end of a connection, and
the count of connections and tasks.

The parser does not limit the size of headers, accepts requests without a Host, takes trailers for headers,
and stops when a client offers another protocol. uvicorn waits without limit for the end of a head and for
clients that do not read, takes any number of connections, parses everything that a client sends ahead at
once, and sends chunks to clients of HTTP/1.0. This class corrects all of that, and answers invalid HTTP with
the error envelope too.
"""

import asyncio
import contextvars
import functools
from collections.abc import Callable
from typing import Any

import httptools
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from mamba_edge.connection.connection_room import PROBES, ConnectionRoom
from mamba_edge.connection.direct_exchange import DIRECT, CloseDelimitedResponses, DirectExchange
from mamba_edge.connection.request_head import head_without_offer, targets
from mamba_edge.connection.waiting_requests import HeldRequests, HoldingFlow, RequestTurns, end_of_part
from mamba_edge.errors import (
    ApiError,
    HeadersTooLarge,
    InvalidRequest,
    RequestTimeout,
    TooManyConnections,
)
from mamba_settings.http_limits import HttpLimits

HEADER_BYTES = 64 * 1024
"""Largest size of a request line with its headers, in bytes."""
_NO_CONTEXT = contextvars.Context()


class _RequestRefused(Exception):
    """Ends the parsing of a request; the answer is in `_refusal`."""


class LimitedProtocol(HttpToolsProtocol):
    """One connection, which counts the bytes of a request's head as they arrive.

    A timer runs while the client owes something: the end of a head, from the first moment of the connection
    on, or the rest of a body whose request was answered already. Further bytes do not reset the timer. The
    time of all other bodies is limited by `read_body`.
    """

    _refusal: ApiError | None = None
    _in_head = False
    _head_began = False
    """Whether a request began in the data that is being parsed."""
    _parsed_bytes = 0
    _pending_bytes = 0
    _hosts = 0
    _in_body = False
    _body_left: int | None = None
    """Bytes of the body that have not arrived; None = unknown length."""
    _begin: Callable[[], None] | None = None
    """Starts the request that waits for its turn among the requests of the server; None = none waits."""
    _has_turn = False
    _timer: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _idle_since: float | None = None
    """Time of the loop since which the connection is idle; None = a request is under way."""
    _offer = b""
    """Head of the request that offered another protocol, such as HTTP/2, without the offer."""
    _leave: Callable[[], None] | None = None
    """Callback for when the client leaves."""

    def __init__(
        self,
        *,
        limits: HttpLimits,
        room: ConnectionRoom,
        turns: RequestTurns,
        opened: Callable[[], None] = lambda: None,
        **more: Any,
    ) -> None:
        """Prepare a connection; `opened` is called when a client has connected."""
        super().__init__(**more)
        self._opened = opened
        self._limits, self._room, self._turns = limits, room, turns

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin with a client that has connected."""
        super().connection_made(transport)
        self.flow = flow = HoldingFlow(transport)
        self._held = HeldRequests(flow)
        self._watch()
        self._room.enter(self)
        # Bytes that are here already are read in the next iteration of the loop, and parsed by its end.
        self.loop.call_soon(self.loop.call_soon, self._room.end_first_read, self)
        self._opened()

    def evict(self) -> None:
        """Close the connection to make room for another one; a request that is still arriving is refused."""
        answered = self.cycle is None or self.cycle.response_complete
        if self._in_head or (self._in_body and not answered):
            self._refusal = self._no_room()
            self.send_400_response("")
        elif self.transport.get_write_buffer_size():
            self.transport.abort()  # closing would wait for a client that does not read any more
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything that the connection held."""
        super().connection_lost(exc)
        self._room.leave(self)
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None
        if self._leave is not None:
            self._leave()
            self._leave = None
        self._held.release()
        self._begin = None
        self._unwatch()
        self._on_read()

    def pause_writing(self) -> None:
        """Watch a client that reads more slowly than we send, so that its buffer is full."""
        super().pause_writing()
        self._wait_for_reader(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Continue to write to a client that has read most of its buffer."""
        super().resume_writing()
        self._on_read()
        if self.transport.is_closing():
            self._limit_closing()

    def _wait_for_reader(self, unread: int) -> None:
        seconds = self._limits.read_nothing_timeout
        self._unread = self.loop.call_later(seconds, self._on_unread, unread)

    def _limit_closing(self) -> None:
        """Limit the time in which the client of a closing connection reads the rest."""
        unread = self.transport.get_write_buffer_size()
        if unread and self._unread is None:
            self._wait_for_reader(unread)

    def _close(self) -> None:
        self.transport.close()
        self._limit_closing()

    def _on_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _on_unread(self, unread: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left < unread:
            # The client is slow, but reads.
            self._wait_for_reader(left)
        else:
            self._unread = None
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Parse bytes that arrived, or hold them until the request before them is answered."""
        if self._held.data or (self.cycle is not None and self._behind):
            self._held.hold(data)
        else:
            self._parse(data, 0)

    def go_on(self) -> None:
        """Start the request that waits for its turn, or the next request in the bytes that are held."""
        if self.transport.is_closing():
            return
        if self._begin is not None:
            begin, self._begin = self._begin, None
            begin()
            return
        data, start = self._held.release()
        self.flow.resume_reading()
        self._room.wait(self)
        self._has_turn = True
        self._parse(data, start)
        self._has_turn = False

    def _parse(self, data: bytes, start: int) -> None:
        """Parse `data` from `start` to the end of the first request to be answered, and hold the rest."""
        self._head_began, self._idle_since = False, None
        first, size = start, len(data)
        try:
            while start < size:
                if self._in_body and self._body_left:
                    end = min(size, start + self._body_left)
                else:
                    continued = start == first and (self._in_head or self._in_body)
                    end = end_of_part(data, start, continued=continued)
                try:
                    self.parser.feed_data(data if end - start == size else memoryview(data)[start:end])
                    start = end
                except httptools.HttpParserUpgrade as offer:
                    start += offer.args[0]
                    self._pass_over_offer()
                if start < size and not self._in_body and self._behind:
                    self._held.hold(data, start)
                    break
        except httptools.HttpParserError:
            self.logger.warning("Invalid HTTP request received.")
            self.send_400_response("")
        self._watch()
        if self._in_head and not self._head_began and self._refusal is None:
            self._pending_bytes += size - first
            if self._pending_bytes > HEADER_BYTES:
                self._refusal = _too_large()
                self.send_400_response("")

    @property
    def _behind(self) -> bool:
        """Whether the next bytes follow a request that has arrived but is not answered yet."""
        if self._in_head or self._in_body:
            return False
        return self.cycle is not None and not self.cycle.response_complete

    def _pass_over_offer(self) -> None:
        """Parse the request again, with a new parser, without its offer of another protocol."""
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.parser.feed_data(self._offer)
        self._offer = b""

    def on_message_begin(self) -> None:
        """Begin a request at its first byte."""
        self.url, self.headers, self.expect_100_continue = b"", [], False
        self._in_head = self._head_began = True
        self._body_left = None
        self._parsed_bytes = self._pending_bytes = self._hosts = 0

    def on_url(self, url: bytes) -> None:
        """Add a part of the request's target."""
        self.url += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header. Trailers arrive here too: they are counted and dropped."""
        # The work of the base class is inlined: most calls while parsing a request are these.
        self._parsed_bytes += len(name) + len(value) + 4
        if self._parsed_bytes > HEADER_BYTES:
            self._refuse(_too_large())
        if self._in_head:
            name = name.lower()
            if name == b"host":
                self._hosts += 1
            elif name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            elif name == b"content-length":
                self._body_left = int(value)
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Admit or refuse the request whose head is complete, and start it when its turn has come."""
        parser = self.parser
        if parser.should_upgrade():
            method, version = parser.get_method(), parser.get_http_version()
            if method == b"CONNECT":
                self._refuse(InvalidRequest("this is not a proxy: CONNECT is refused", code="invalid_http"))
            self._offer = head_without_offer(method, self.url, version, self.headers)
            return
        self._in_head, self._in_body = False, True
        if self._hosts != 1 and not (self._hosts == 0 and self.parser.get_http_version() == "1.0"):
            self._refuse(InvalidRequest("a request must have one Host header", code="invalid_http"))
        version = parser.get_http_version()
        path, raw_path, query = targets[self.url]
        if not self._room.admit(self, path, self.loop.time()):
            self._refuse(self._no_room())
        self.scope = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,  # type: ignore[typeddict-item]
            "root_path": self.root_path,
            "headers": self.headers,
            "state": self.app_state.copy(),
            "method": parser.get_method().decode("ascii"),
            "path": path,
            "raw_path": raw_path,
            "query_string": query,
        }
        # Bytes behind a request that is not answered are held, and not parsed.
        assert self.cycle is None or self.cycle.response_complete
        self.cycle = RequestResponseCycle(
            self.scope, self.transport, self.flow, self.logger, self.access_logger, self.access_log,
            self.server_state.default_headers, asyncio.Event(), self.expect_100_continue,
            version != "1.0" and parser.should_keep_alive(), self.on_response_complete,
        )  # fmt: skip
        if self._has_turn or path in PROBES or self._turns.take():
            self._has_turn = False
            self._start_asgi_task(self.cycle, self.app)
        else:
            self._begin = functools.partial(self._start_asgi_task, self.cycle, self.app)
            self._turns.wait(self)

    def on_body(self, body: bytes) -> None:
        """Add a part of the request's body."""
        if self._body_left is not None:
            self._body_left -= len(body)
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.body += body
            if len(cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
            cycle.message_event.set()

    def on_message_complete(self) -> None:
        """Record the last byte of a request."""
        if self.parser.should_upgrade():
            return  # the parser takes the bytes after the offer for another protocol
        self._in_body = False
        self._room.body_complete(self)
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.more_body = False
            cycle.message_event.set()

    def on_response_complete(self) -> None:
        """Prepare for the next request after the last byte of an answer.

        An idle connection keeps nothing of its last request: neither its headers and scope nor, through the
        timer of the idle connection, objects that the context of the request's task refers to.
        """
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            self._limit_closing()
        elif self._held.data:
            self._turns.wait(self)
        else:
            if self.flow.read_paused:
                self.flow.resume_reading()
            self._wait_for_request()
            self._room.wait(self)
        if self.cycle.response_complete and not (self._in_head or self._in_body):
            self.cycle = self.scope = self.headers = None  # type: ignore[assignment]

    def _wait_for_request(self) -> None:
        # The timer of an idle connection is kept when the next request comes in time, and checks again later.
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._wind_idle(self.timeout_keep_alive)

    def _wind_idle(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(
            seconds, self.timeout_keep_alive_handler, context=_NO_CONTEXT.copy()
        )

    def _unset_keepalive_if_required(self) -> None:
        self._idle_since = None

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection if it has been idle for too long."""
        self.timeout_keep_alive_task = None
        if self._idle_since is None:
            return
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._wind_idle(left)
        else:
            self._close()

    def _watch(self) -> None:
        answering = self.cycle is not None and not self.cycle.response_complete
        if self._in_head or not answering:
            rest = self._in_body and not self._in_head
            self._limit(self._limits.body_timeout if rest else self._limits.header_timeout)
        else:
            self._unwatch()

    def _limit(self, seconds: float) -> None:
        if self._timer is None and not self.transport.is_closing():
            self._timer = self.loop.call_later(seconds, self._on_time_out)

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_time_out(self) -> None:
        self._timer = None
        if self.cycle is not None and not self.cycle.response_complete:
            # A part of the next request came while an answer is under way, which must not be cut.
            self._limit(self._limits.header_timeout)
        elif self._in_head:
            seconds = self._limits.header_timeout
            self._refusal = RequestTimeout(f"the request's headers did not arrive within {seconds:g} s")
            self.send_400_response("")
        else:
            self._close()

    def _count(self, size: int) -> None:
        self._parsed_bytes += size
        if self._parsed_bytes > HEADER_BYTES:
            self._refuse(_too_large())

    def _no_room(self) -> TooManyConnections:
        limit = self._room.limit
        return TooManyConnections(
            f"{limit} connections have requests under way, which is the limit; try later"
        )

    def _refuse(self, refusal: ApiError) -> None:
        self._refusal = refusal
        raise _RequestRefused

    def _on_disconnect(self, leave: Callable[[], None] | None) -> None:
        self._leave = leave
        if leave is not None:
            if self.flow.read_paused:
                self.flow.resume_reading()  # otherwise the end of the connection would go unnoticed
            if self.transport.is_closing():
                leave()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if cycle.scope["http_version"] == "1.0":
            app = CloseDelimitedResponses(app, cycle)

        def with_direct(scope: Scope, receive: Receive, send: Send) -> Any:
            # In a copy: the exchange refers to the scope, and the cycle would live until the next collection.
            direct = DirectExchange(cycle, self._on_disconnect)
            return app({**scope, DIRECT: direct}, receive, send)

        super()._start_asgi_task(cycle, with_direct)  # type: ignore[arg-type]

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is invalid or refused; the connection ends with the answer."""
        error = self._refusal or InvalidRequest("this is not a valid HTTP request", code="invalid_http")
        self._refusal = error
        body = error.envelope()
        headers = {"content-type": "application/json", **error.headers(), "connection": "close"}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head += f"content-length: {len(body)}\r\n\r\n"
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self.transport.write(STATUS_LINE[error.status] + head.encode() + body)
        self._close()


def _too_large() -> HeadersTooLarge:
    return HeadersTooLarge(f"the request line and headers have more than {HEADER_BYTES} bytes")
