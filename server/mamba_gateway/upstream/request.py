"""Upstream: one attempt at one engine, up to the first byte of its answer.

Owns the HTTP client's settings and turns its many exceptions into three outcomes. Used by the relay.
"""

from collections.abc import Awaitable
from dataclasses import dataclass, field

import aiohttp

from mamba_edge.exchange.body_budget import BodyShare
from mamba_gateway.admission.admission import Permit
from mamba_gateway.admission.usage_meter import UsageMeter
from mamba_gateway.prompt_prefix import PromptPrefix
from mamba_gateway.upstream.connector import UpstreamConnector, keepalive_socket
from mamba_gateway.upstream.response import UpstreamResponse
from mamba_telemetry.request_trace import UNTRACED, RequestTrace, SpanNote


@dataclass(slots=True)
class UpstreamRequest:
    """What is sent to an engine, the same for every attempt."""

    path: str
    query: str
    headers: list[tuple[bytes, bytes]]
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
    has_form: bool = False
    """The answer is to have a form that the client wrote."""
    explain: bool = False
    """The client wants to know why this engine was chosen."""

    def release_body(self) -> None:
        """An engine has begun to answer: no other attempt needs the body."""
        self.body = b""
        if self.body_share is not None:
            self.body_share.release()


def make_session(connect_timeout: float, idle_timeout: float) -> aiohttp.ClientSession:
    """The client that asks engines what they are and have: no cookies, no limit of its own on connections."""
    connector = aiohttp.TCPConnector(
        limit=0,
        # Below the five seconds after which the servers in use close idle connections: no race for one.
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
    """Send the request, as a child of `span`; the response and the first bytes of its body, empty if it has
    none. Raises Unreachable, ConnectionLost, IdleTimeout.

    Close the response: before the body's end that closes the connection, which the engine sees as a
    cancellation.
    """
    headers = request.headers
    if traceparent := request.trace.traceparent(span):
        headers = [*headers, (b"traceparent", traceparent.encode())]
    start = f"POST {request.path}?{request.query}" if request.query else f"POST {request.path}"
    return connector.send(base, start, headers, request.body)
