"""One request as engines get it, and the aiohttp session for what the gateway asks of engines for itself.

The relay sends the request with `ask`, once for each attempt; parts that query engines share the session.
"""

from collections.abc import Awaitable

import aiohttp
import msgspec

from mamba_edge.exchange.body_budget import BodyShare
from mamba_gateway.admission.admission import Permit
from mamba_gateway.admission.usage_meter import UsageMeter
from mamba_gateway.prompt_prefix import PromptPrefix
from mamba_gateway.upstream.connector import UpstreamConnector, keepalive_socket
from mamba_gateway.upstream.response import UpstreamResponse
from mamba_telemetry.request_trace import UNTRACED, RequestTrace, SpanNote


class UpstreamRequest(msgspec.Struct, eq=False):
    """One request for an engine, the same for every attempt."""

    path: str
    query: str
    headers: list[tuple[bytes, bytes]]
    body: bytes
    model: str | None = None
    body_share: BodyShare | None = None
    """Share of the body in the bytes that the gateway may hold."""
    request_id: str = ""
    prompt: PromptPrefix | None = None
    """The prompt, where it is known."""
    permit: Permit | None = None
    """Permit of the request, which records when it is at an engine."""
    meter: UsageMeter | None = None
    """Meter that reads the answer."""
    trace: RequestTrace = UNTRACED
    has_form: bool = False
    """Whether the answer has a form that the client wrote."""
    explain: bool = False
    """Whether the answer explains the choice of the engine to the client."""

    def __repr__(self) -> str:
        """Return a text without anything that a client wrote."""
        return f"{type(self).__name__}({self.request_id!r})"

    def release_body(self) -> None:
        """Release the body once an engine has begun to answer: no other attempt needs it."""
        self.body = b""
        if self.body_share is not None:
            self.body_share.release()


def make_session(connect_timeout: float, idle_timeout: float) -> aiohttp.ClientSession:
    """Return the session of all queries of engines: no cookies, no limit of its own on connections."""
    connector = aiohttp.TCPConnector(
        limit=0,
        # Below the five seconds after which the servers in use close idle connections, so that none races.
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
    connector: UpstreamConnector, base: str, request: UpstreamRequest, span: SpanNote | None = None
) -> Awaitable[tuple[UpstreamResponse, bytes]]:
    """Send the request, as a child of `span`; return the response and the first bytes of its body.

    The bytes are empty if there is no body. Close the response: before the body's end that closes the
    connection, which the engine sees as a cancellation. Raises EngineUnreachable, ConnectionLost,
    IdleTimeout.
    """
    headers = request.headers
    if traceparent := request.trace.traceparent(span):
        headers = [*headers, (b"traceparent", traceparent.encode())]
    start = f"POST {request.path}?{request.query}" if request.query else f"POST {request.path}"
    return connector.send(base, start, headers, request.body)
