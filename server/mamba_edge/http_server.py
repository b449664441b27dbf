"""The one HTTP server of all processes: uvicorn over httptools, with a limit on headers, signals left to us.

The parser has no limit of its own on the size of headers, takes requests without a Host, and trailers for
headers; uvicorn sends chunks to clients of HTTP/1.0. All four are mended here, and what is no HTTP gets the
envelope, too.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from mamba_edge.errors import ApiError, HeadersTooLarge, InvalidRequest

HEADER_BYTES = 64 * 1024
"""Most bytes of a request line with its headers."""
KEEP_ALIVE_SECONDS = 75
"""How long an idle connection is kept: longer than the 60 s of most load balancers."""


class _Refused(Exception):
    """Ends the parsing of a request; the answer is in `refusal`."""


class LimitedProtocol(HttpToolsProtocol):
    """One connection. Counts the bytes of a head as they come, whole headers and parts of one alike."""

    _refusal: ApiError | None = None
    _in_head = False
    _head_began = False
    """In the data that is being parsed."""
    _parsed_bytes = 0
    _pending_bytes = 0
    _hosts = 0

    def data_received(self, data: bytes) -> None:
        """Bytes came in."""
        self._head_began = False
        super().data_received(data)
        if self._in_head and not self._head_began and self._refusal is None:
            self._pending_bytes += len(data)
            if self._pending_bytes > HEADER_BYTES:
                self._refusal = _too_large()
                self.send_400_response("")

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._in_head = self._head_began = True
        self._parsed_bytes = self._pending_bytes = self._hosts = 0

    def on_url(self, url: bytes) -> None:
        """A part of the request's target."""
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """A whole header. Trailers come here, too: they are counted and dropped."""
        self._count(len(name) + len(value) + 4)
        if self._in_head:
            super().on_header(name, value)
            self._hosts += name.lower() == b"host"

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._in_head = False
        if self._hosts != 1 and not (self._hosts == 0 and self.parser.get_http_version() == "1.0"):
            self._refuse(InvalidRequest("a request names its host once", code="invalid_http"))
        super().on_headers_complete()

    def _count(self, size: int) -> None:
        self._parsed_bytes += size
        if self._parsed_bytes > HEADER_BYTES:
            self._refuse(_too_large())

    def _refuse(self, refusal: ApiError) -> None:
        self._refusal = refusal
        raise _Refused

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if cycle.scope["http_version"] == "1.0":
            app = _UntilClose(app, cycle)
        super()._start_asgi_task(cycle, app)

    def send_400_response(self, msg: str) -> None:
        """The answer to what is no request; the connection ends with it."""
        error = self._refusal or InvalidRequest("this is not a valid HTTP request", code="invalid_http")
        self._refusal = error
        body = error.envelope()
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self.transport.write(STATUS_LINE[error.status] + head % len(body) + body)
        self.transport.close()


class _UntilClose:
    """Around the application for a client of HTTP/1.0, which knows no chunks: a body of unknown length ends
    where the connection does."""

    def __init__(self, app: ASGIApp, cycle: RequestResponseCycle) -> None:
        self._app, self._cycle = app, cycle
        self._unknown_length = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def unchunked(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._unknown_length = all(name != b"content-length" for name, _ in message["headers"])
                if self._unknown_length:
                    self._cycle.chunked_encoding = False
            elif self._unknown_length:
                self._cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await self._app(scope, receive, unchunked)


def _too_large() -> HeadersTooLarge:
    return HeadersTooLarge(f"the request line and headers have more than {HEADER_BYTES} bytes")


class HttpServer(uvicorn.Server):
    """A server of one application. It leaves signals alone: the process drains before it stops."""

    def __init__(self, app: ASGIApp, *, last_bytes_seconds: int | None) -> None:
        """`last_bytes_seconds`: how long connections may take to close at the end; None: for ever."""
        super().__init__(
            uvicorn.Config(
                app,
                http=LimitedProtocol,
                lifespan="off",
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=last_bytes_seconds,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing is captured."""
        yield
