"""Upstream: one attempt at one engine, up to the first byte of its answer.

Owns the HTTP client's settings and turns its many exceptions into three outcomes. Used by the relay.
"""

import io
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import aiohttp
from yarl import URL

from mamba_edge.body_budget import BodyShare
from mamba_gateway.admission import Permit
from mamba_gateway.prompt_prefix import PromptPrefix
from mamba_gateway.usage_meter import UsageMeter
from mamba_telemetry.request_trace import UNTRACED, RequestTrace, SpanNote

LARGE_BODY = 256 * 1024


class Unreachable(Exception):
    """No connection: the engine saw nothing of the request."""


class ConnectionLost(Exception):
    """The engine closed the connection before its answer was complete."""


class IdleTimeout(Exception):
    """The engine sent nothing for longer than the idle limit."""


@dataclass(slots=True)
class UpstreamRequest:
    """What is sent to an engine, the same for every attempt."""

    path: str
    query: str
    headers: list[tuple[str, str]]
    body: bytes = field(repr=False)
    model: str | None = None
    body_share: BodyShare | None = field(default=None, repr=False)
    """The body's share of what the gateway may hold."""
    request_id: str = ""
    prompt: PromptPrefix | None = field(default=None, repr=False)
    """What it asks, where that is known."""
    permit: Permit | None = field(default=None, repr=False)
    """Told when the request is at an engine."""
    meter: UsageMeter | None = field(default=None, repr=False)
    """Fed with the answer."""
    trace: RequestTrace = UNTRACED
    explain: bool = False
    """The client wants to know why this engine was chosen."""

    def let_body_go(self) -> None:
        """An engine has begun to answer: no other attempt needs the body."""
        self.body = b""
        if self.body_share is not None:
            self.body_share.release()


def _keepalive_socket(address: tuple[int, int, int, str, tuple[object, ...]]) -> socket.socket:
    # A node that vanished sends no reset: without these a request to it would wait for the idle limit.
    family, kind, protocol = address[0], address[1], address[2]
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, seconds in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if (option := getattr(socket, name, None)) is not None:
            made.setsockopt(socket.IPPROTO_TCP, option, seconds)
    if (option := getattr(socket, "TCP_USER_TIMEOUT", None)) is not None:
        made.setsockopt(socket.IPPROTO_TCP, option, 40_000)
    return made


def make_session(connect_timeout: float, idle_timeout: float) -> aiohttp.ClientSession:
    """The client that relays: no decompression, no cookies, no limit of its own on connections."""
    connector = aiohttp.TCPConnector(
        limit=0,
        # Below the five seconds after which the servers in use close idle connections: no race for one.
        keepalive_timeout=4,
        socket_factory=_keepalive_socket,
    )
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout, sock_read=idle_timeout),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("User-Agent", "Content-Type", "Accept", "Accept-Encoding"),
    )


@contextmanager
def translated_errors() -> Iterator[None]:
    """Turn what the HTTP client raises into `Unreachable`, `ConnectionLost` or `IdleTimeout`."""
    try:
        yield
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise Unreachable(str(error)) from error
    except aiohttp.SocketTimeoutError as error:
        raise IdleTimeout(str(error)) from error
    except (aiohttp.ClientError, ConnectionError) as error:
        raise ConnectionLost(str(error) or type(error).__name__) from error


@asynccontextmanager
async def attempt(
    session: aiohttp.ClientSession, base: str, request: UpstreamRequest, span: SpanNote | None = None
) -> AsyncIterator[tuple[aiohttp.ClientResponse, bytes]]:
    """Send the request, as a child of `span`; yields the response and the first bytes of its body, empty if
    it has none.

    Leaving the context before the body's end closes the connection, which the engine sees as a cancellation.
    """
    url = URL(f"{base}{request.path}" + (f"?{request.query}" if request.query else ""), encoded=True)
    # As a file the client writes it piece by piece, and a large body does not hold up the other streams.
    data = request.body if len(request.body) < LARGE_BODY else io.BytesIO(request.body)
    headers = request.headers
    if traceparent := request.trace.traceparent(span):
        headers = [*headers, ("traceparent", traceparent)]
    with translated_errors():
        response = await session.post(url, data=data, headers=headers, allow_redirects=False)
    del data  # or this frame would hold the body as long as the answer streams
    try:
        with translated_errors():
            first = await response.content.readany()
        yield response, first
    finally:
        response.close()
