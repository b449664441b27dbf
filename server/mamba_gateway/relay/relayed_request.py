"""One relayed request at the proxy endpoint: what its client sent, and what has become known of it.

The only reader of the ASGI scope below the request middleware on this way.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from mamba_edge.connection.direct_exchange import BEGIN, DIRECT, DirectExchange
from mamba_edge.exchange.body_budget import BodyShare
from mamba_edge.exchange.request_body import RawHeaders
from mamba_gateway.admission.rate_limiter import RequestCharge
from mamba_gateway.key_limits import ANYONE, NO_LIMITS, KeyLimits
from mamba_gateway.relay.client_response import ClientResponse
from mamba_gateway.routing.routing_fields import NO_FIELDS, RoutingFields
from mamba_telemetry.request_trace import RequestTrace


class RelayedRequest(msgspec.Struct, eq=False):
    """One request from its headers to the last byte of its answer; the steps of the endpoint fill it in."""

    scope: Scope
    receive: Receive
    response: ClientResponse
    direct: DirectExchange | None
    """The exchange at our own server; None = another server."""
    path: str
    query: str
    headers: RawHeaders
    header_values: Mapping[bytes, bytes]
    request_id: str
    arrival: float
    """Monotonic seconds."""
    trace: RequestTrace
    body_share: BodyShare | None
    """Share of the body in what the process may hold."""
    answer_headers: list[tuple[bytes, bytes]]
    """Headers that the middleware adds to whatever answer the client gets."""
    log_fields: dict[str, Any]
    """Fields of the request's log line."""
    key: str = ANYONE
    """Name of the key that came with the request."""
    limits: KeyLimits = NO_LIMITS
    """Limits of the key."""
    fields: RoutingFields = NO_FIELDS
    prompt_tokens: float = 0.0
    """Tokens of the prompt, estimated where nobody tokenized it."""
    charge: RequestCharge | None = None
    """The request's charge to the limits of its key; None = the key has no limits."""
    client_left: bool = False
    """Whether the client went away before the end of its answer."""
    refusal_reason: str = ""
    """Label of the reason of a refusal by the gateway."""

    @classmethod
    def of(cls, scope: Scope, receive: Receive, send: Send) -> "RelayedRequest":
        """Read a request from its ASGI scope."""
        direct: DirectExchange | None = scope.get(DIRECT)
        return cls(
            scope,
            receive,
            ClientResponse(send, direct.write if direct else None, scope.get(BEGIN)),
            direct,
            scope["path"],
            scope.get("query_string", b"").decode("latin-1"),
            scope["headers"],
            scope["header_values"],
            scope["request_id"],
            scope["arrival"],
            scope["trace"],
            scope.get("body_share"),
            scope["answer_headers"],
            scope["log_fields"],
        )
