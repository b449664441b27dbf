"""One relayed request at the proxy endpoint: what its client sent, and what has become known of it.

The only reader of the ASGI scope below the request middleware on this way.
"""

import msgspec
from starlette.types import Receive, Scope, Send

from mamba_edge.exchange.request_body import RawHeaders
from mamba_edge.exchange.request_context import RequestContext, context_of
from mamba_gateway.admission.rate_limiter import RequestCharge
from mamba_gateway.key_limits import ANYONE, NO_LIMITS, KeyLimits
from mamba_gateway.relay.client_response import ClientResponse
from mamba_gateway.routing.routing_fields import NO_FIELDS, RoutingFields


class RelayedRequest(msgspec.Struct, eq=False):
    """One request from its headers to the last byte of its answer; the steps of the endpoint fill it in."""

    context: RequestContext
    """Facts that the request middleware hands down."""
    receive: Receive
    response: ClientResponse
    path: str
    query: str
    headers: RawHeaders
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
        context = context_of(scope)
        direct = context.direct
        return cls(
            context,
            receive,
            ClientResponse(send, direct.write if direct else None, context.begin),
            scope["path"],
            scope.get("query_string", b"").decode("latin-1"),
            scope["headers"],
        )
