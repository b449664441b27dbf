"""Upstream connector: the connections to all engines, which are opened on demand and kept for later requests.

The relay sends an `UpstreamRequest` with `ask`, once for each attempt. The gateway's own requests to engines
use the aiohttp session that `make_session` creates.
"""

import asyncio
import contextvars
import functools
import socket
import ssl
from base64 import b64encode
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

import aiohttp
import msgspec

from mamba_api.names import authority
from mamba_edge.exchange.request_body import BodyShare
from mamba_gateway.admission.admission import Permit
from mamba_gateway.body_fields import UsageMeter
from mamba_gateway.prompt_prefix import PromptPrefix
from mamba_gateway.upstream.connection import EngineUnreachable, Pair, UpstreamConnection, UpstreamResponse
from mamba_gateway.upstream.deadlines import Deadlines
from mamba_telemetry.request_trace import UNTRACED, RequestTrace, SpanNote

IDLE_SECONDS = 4.0
"""Seconds for which an idle connection is kept. The servers in use close theirs after five seconds; a lower
value prevents that a request is sent to a connection that is being closed."""
MAX_STARTS = 16
"""Number of request lines that are cached for each engine."""
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(slots=True)
class Origin:
    """The address of one engine, with its idle connections; the one used last is at the end."""

    base: str
    host: str
    port: int
    tls: bool
    path: str
    """Prefix of the path of every request."""
    authority: bytes
    """Value of the Host header."""
    credentials: bytes | None
    """Value of the Authorization header for the name and password in the URL; None = the URL has none."""
    idle: deque[tuple[float, UpstreamConnection]] = field(default_factory=deque)
    """Idle connections, each behind the time of the event loop since which it is idle."""
    _starts: dict[str, bytes] = field(default_factory=dict, repr=False)

    def start(self, start: str) -> bytes:
        """Return request line and Host header for a method and target, without the last line end."""
        head = self._starts.get(start)
        if head is None:
            method, _, target = start.partition(" ")
            line = b"%b %b%b HTTP/1.1" % (method.encode(), self.path.encode(), target.encode("latin-1"))
            head = b"%b\r\nhost: %b" % (line, self.authority)
            # There are few paths. Queries, and everything else that clients choose, are not cached.
            if "?" not in start and len(self._starts) < MAX_STARTS:
                self._starts[start] = head
        return head

    @classmethod
    def of(cls, base: str) -> "Origin":
        """Parse a base URL, http or https."""
        parts = urlsplit(base)
        host = parts.hostname or ""
        default = _DEFAULT_PORTS[parts.scheme]
        port = parts.port or default
        named = f"[{host}]" if ":" in host else host.encode("idna").decode()
        authority = named if port == default else f"{named}:{port}"
        credentials = None
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            credentials = b"Basic " + b64encode(pair.encode())
        return cls(base, host, port, parts.scheme == "https", parts.path, authority.encode(), credentials)


class UpstreamConnector:
    """Opens connections of one gateway to its engines, and uses them again.

    Their number is limited by the permits of requests. A connection is opened within `connect_timeout`
    seconds; an engine may send nothing for `idle_timeout` seconds.
    """

    def __init__(self, connect_timeout: float, idle_timeout: float) -> None:
        self._connect_timeout = connect_timeout
        self._origins: dict[str, Origin] = {}
        self.loop = asyncio.get_running_loop()
        """Event loop. Parts that handle requests store it, because looking it up is a system call."""
        self._idle = Deadlines(self.loop, idle_timeout)
        self._sweep: asyncio.TimerHandle | None = None
        self._tls: ssl.SSLContext | None = None
        self._closed = False

    def origin(self, base: str) -> Origin:
        """Return the origin for the base URL of an engine."""
        origin = self._origins.get(base)
        if origin is None:
            origin = self._origins[base] = Origin.of(base)
        return origin

    def send(
        self, base: str, start: str, headers: Iterable[Pair], body: bytes
    ) -> Awaitable[tuple[UpstreamResponse, bytes]]:
        """Send a request to the engine at a base URL; return its answer and the first bytes of the body.

        The bytes are empty if there is no body. `start` consists of method and target, without the path of
        the base URL.

        Raises EngineUnreachable, ConnectionLost, IdleTimeout; `ValueError` for a header with a line end. If
        the answer is closed before its end, its connection is closed too.
        """
        origin = self.origin(base)
        head = _head(origin, start, headers, len(body))
        connection = self._idle_connection(origin)
        return (
            self._connect_and_send(origin, head, body) if connection is None else connection.send(head, body)
        )

    async def _connect_and_send(
        self, origin: Origin, head: bytes, body: bytes
    ) -> tuple[UpstreamResponse, bytes]:
        connection = await self._new_connection(origin)
        sending = connection.send(head, body)
        del body  # or this frame would hold it until the answer begins to come
        return await sending

    def _idle_connection(self, origin: Origin) -> UpstreamConnection | None:
        while origin.idle:
            kept_since, connection = origin.idle.pop()
            if connection.usable and self.loop.time() - kept_since < IDLE_SECONDS:
                return connection
            connection.abort()
        return None

    async def _new_connection(self, origin: Origin) -> UpstreamConnection:
        where = authority(origin.host, origin.port)
        try:
            async with asyncio.timeout(self._connect_timeout):
                # A connection outlives the request that opened it, so it must not keep its context.
                connecting = self._connect(origin)
                return await asyncio.create_task(connecting, context=contextvars.Context())
        except TimeoutError:
            message = f"Connect to {where} took longer than {self._connect_timeout:g} s"
            raise EngineUnreachable(message) from None
        except (OSError, UnicodeError) as error:
            raise EngineUnreachable(f"Connect to {where} failed: {error}") from error

    def close(self) -> None:
        """Close the idle connections; connections in use are closed when their request has ended."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        for origin in self._origins.values():
            for _, connection in origin.idle:
                connection.abort()
        self._origins.clear()
        self._idle.close()

    async def _connect(self, origin: Origin) -> UpstreamConnection:
        addresses = await self.loop.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
        refused: OSError | None = None
        for family, kind, protocol, _, address in addresses:
            try:
                opened = await self._open_socket(family, kind, protocol, address)
            except OSError as error:
                refused = error
                continue
            try:
                _, connection = await self.loop.create_connection(
                    functools.partial(
                        UpstreamConnection, self._idle, functools.partial(self._return, origin.base)
                    ),
                    sock=opened,
                    ssl=self._tls_context() if origin.tls else None,
                    server_hostname=origin.host if origin.tls else None,
                )
            except BaseException:
                opened.close()
                raise
            return connection
        raise refused or OSError("its name has no address")

    async def _open_socket(self, family: int, kind: int, protocol: int, address: object) -> socket.socket:
        opened = keepalive_socket(family, kind, protocol)
        try:
            opened.setblocking(False)
            await self.loop.sock_connect(opened, address)  # type: ignore[arg-type]
        except BaseException:
            opened.close()
            raise
        return opened

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def _return(self, base: str, connection: UpstreamConnection) -> None:
        if self._closed:
            connection.abort()
            return
        self.origin(base).idle.append((self.loop.time(), connection))
        if self._sweep is None:
            # All connections share one timer, so that requests need not start one each.
            self._sweep = self.loop.call_later(IDLE_SECONDS, self._on_sweep)

    def _on_sweep(self) -> None:
        self._sweep = None
        now = self.loop.time()
        for base, origin in list(self._origins.items()):
            while origin.idle and (now - origin.idle[0][0] >= IDLE_SECONDS or not origin.idle[0][1].usable):
                origin.idle.popleft()[1].abort()
            if not origin.idle:
                del self._origins[base]  # engines that were removed are forgotten
        if self._origins:
            since = min(origin.idle[0][0] for origin in self._origins.values())
            self._sweep = self.loop.call_later(max(0.0, since + IDLE_SECONDS - now), self._on_sweep)


@asynccontextmanager
async def upstream_connector(connect_timeout: float, idle_timeout: float) -> AsyncIterator[UpstreamConnector]:
    """Yield a connector that is closed at the end of the block."""
    connector = UpstreamConnector(connect_timeout, idle_timeout)
    try:
        yield connector
    finally:
        connector.close()


def _head(origin: Origin, start: str, headers: Iterable[Pair], body_bytes: int) -> bytes:
    lines = [origin.start(start), *[b"%b: %b" % pair for pair in headers]]
    if origin.credentials is not None and not any(name == b"authorization" for name, _ in headers):
        lines.append(b"authorization: " + origin.credentials)
    if not start.startswith("GET "):
        lines.append(b"content-length: %d" % body_bytes)
    head = b"\r\n".join(lines) + b"\r\n\r\n"
    ends = len(lines) + 2  # the first has two
    if head.count(b"\n") != ends or head.count(b"\r") != ends:
        raise ValueError("a header holds a line end")
    return head


def keepalive_socket(family: int, kind: int, protocol: int) -> socket.socket:
    """Return a socket that detects a node that has disappeared without closing its connections.

    Without that, a request to such a node would wait for the idle limit.
    """
    opened = socket.socket(family, kind, protocol)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, seconds in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if (option := getattr(socket, name, None)) is not None:
            opened.setsockopt(socket.IPPROTO_TCP, option, seconds)
    if (option := getattr(socket, "TCP_USER_TIMEOUT", None)) is not None:
        opened.setsockopt(socket.IPPROTO_TCP, option, 40_000)
    return opened


class UpstreamRequest(msgspec.Struct, eq=False):
    """Holds what the gateway sends to an engine for one request; every attempt sends the same."""

    path: str
    query: str
    headers: list[tuple[bytes, bytes]]
    body: bytes
    model: str | None = None
    body_share: BodyShare | None = None
    """Share of this body in the number of bytes that the gateway may hold."""
    request_id: str = ""
    prompt: PromptPrefix | None = None
    """The prompt; None = unknown."""
    permit: Permit | None = None
    """Permit of the request, which records whether the request is at an engine."""
    meter: UsageMeter | None = None
    """Counter of the tokens in the answer."""
    trace: RequestTrace = UNTRACED
    conversation: int | None = None
    """Hash of the conversation, computed while there is a canary; None = not known."""
    has_form: bool = False
    """Whether the client prescribes the form of the answer, such as a schema."""
    explain: bool = False
    """Whether the answer tells the client why the engine was chosen."""
    log_fields: dict[str, Any] = msgspec.field(default_factory=dict)
    """Fields for the request's line in the log."""

    def __repr__(self) -> str:
        """Return a text without any part of the request that the client wrote."""
        return f"{type(self).__name__}({self.request_id!r})"

    def release_body(self) -> None:
        """Release the body when an engine has begun to answer, as no other attempt needs it."""
        self.body = b""
        if self.body_share is not None:
            self.body_share.release()


def make_session(connect_timeout: float, idle_timeout: float) -> aiohttp.ClientSession:
    """Return the session for the gateway's own requests: no cookies, no limit on connections."""
    connector = aiohttp.TCPConnector(
        limit=0,
        # Less than the five seconds after which the servers in use close idle connections (`IDLE_SECONDS`).
        keepalive_timeout=4,
        socket_factory=lambda address: keepalive_socket(*address[:3]),
    )
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout, sock_read=idle_timeout),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("User-Agent", "Content-Type", "Accept", "Accept-Encoding"),
    )


def ask(
    connector: UpstreamConnector,
    base: str,
    request: UpstreamRequest,
    span: SpanNote | None = None,
    added: tuple[Pair, ...] = (),
) -> Awaitable[tuple[UpstreamResponse, bytes]]:
    """Send the request, as a child of the trace span `span`; return the answer and its first bytes.

    `added` are headers for this engine only.

    The bytes are empty if there is no body. The caller must close the answer. If that happens before the end
    of the body, the connection is closed, which the engine treats as a cancellation. Raises
    EngineUnreachable, ConnectionLost, IdleTimeout.
    """
    headers = [*request.headers, *added] if added else request.headers
    if traceparent := request.trace.traceparent(span):
        headers = [*headers, (b"traceparent", traceparent.encode())]
    start = f"POST {request.path}?{request.query}" if request.query else f"POST {request.path}"
    return connector.send(base, start, headers, request.body)
