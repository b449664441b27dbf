"""`RequestContext`: the facts that the request middleware hands down with each request.

The middleware puts one into the scope of every HTTP request; endpoints, guards and routes below it read it
with `context_of`. Nothing else passes from the middleware to them.
"""

import re
from collections.abc import Mapping, MutableMapping
from typing import Any

import msgspec

from mamba_api.names import GATEWAY_KEY
from mamba_edge.connection.direct_exchange import Begin, DirectExchange
from mamba_edge.exchange.request_body import BodyShare
from mamba_telemetry.request_trace import RequestTrace

CONTEXT = "mambaserve.request"
"""Key of the scope that holds the `RequestContext`."""
CLIENT_HEADER = b"x-mambaserve-client"
"""Header from a gateway to an engine with the name of the client's key: the engine itself only sees the key
of the gateway."""
_CLIENT_NAME = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class RequestContext(msgspec.Struct, eq=False):
    """Holds what the request middleware knows of one request, for the code inside it."""

    request_id: str
    arrival: float
    """Monotonic time at which the middleware took the request, in seconds."""
    header_values: Mapping[bytes, bytes]
    """First value of each request header; names in lower case."""
    trace: RequestTrace
    body_share: BodyShare
    """Bytes that the request holds of the process's budget for bodies."""
    log_fields: dict[str, Any]
    """Fields of the request's log line. Endpoints may add some."""
    answer_headers: list[tuple[bytes, bytes]]
    """Headers that every answer to the request gets. Endpoints may add some."""
    direct: DirectExchange | None
    """Access to request and answer that bypasses the messages of ASGI; None at other HTTP servers."""
    begin: Begin | None
    """`DirectExchange.begin`, which also adds the headers of the middleware; None where `direct` is None."""
    key_name: str | None = None
    """Name of the API key that the request was admitted with; None = no key was checked."""
    body_bytes: int = 0
    """Size of the body; 0 until an endpoint has read it."""

    @property
    def client(self) -> str:
        """Name of the client, by which an engine shares its steps fairly; "" = unknown.

        The name is that of the request's key. A request without a key, or with a gateway's key, may name its
        client in `CLIENT_HEADER`.
        """
        if self.key_name is not None and self.key_name != GATEWAY_KEY:
            return self.key_name
        name = self.header_values.get(CLIENT_HEADER)
        if name is not None and _CLIENT_NAME.fullmatch(name):
            return name.decode()
        return self.key_name or ""


def context_of(scope: MutableMapping[str, Any]) -> RequestContext:
    """Return the context of a request below the request middleware."""
    context: RequestContext = scope[CONTEXT]
    return context
