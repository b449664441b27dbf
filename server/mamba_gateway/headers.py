"""Headers that pass through the gateway in each direction, and the identifiers that a request carries.

Pure. Names are bytes in lower case, as in ASGI.
"""

import functools
import re
from collections.abc import Callable

from mamba_edge.exchange.asgi_responses import USAGE_HEADER
from mamba_edge.exchange.explain_header import ELSEWHERE_HEADER, EXPLAIN_HEADER
from mamba_edge.exchange.hand_over_headers import HAND_OVER_HEADER, PEER_HEADER
from mamba_edge.exchange.request_body import RawHeaders
from mamba_edge.exchange.request_context import CLIENT_HEADER
from mamba_edge.history.kept_answer import HISTORY_HEADER
from mamba_edge.usage.prices import PRICES_HEADER

HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
"""Headers of one connection, not of the message (RFC 9110 section 7.6.1)."""

# Headers that are written again for the connection to the engine, or set by the gateway itself.
_OWN_REQUEST = HOP_BY_HOP | frozenset(
    (
        b"host",
        b"content-length",
        b"expect",
        b"x-request-id",
        b"traceparent",
        EXPLAIN_HEADER,
        ELSEWHERE_HEADER,
        USAGE_HEADER,
        CLIENT_HEADER,
        HAND_OVER_HEADER,
        PEER_HEADER,
        HISTORY_HEADER,
        PRICES_HEADER,
    )
)
# Headers that the server of the gateway sets itself.
_OWN_RESPONSE = HOP_BY_HOP | frozenset((b"date", b"server", b"x-request-id", b"request-id", EXPLAIN_HEADER))
KEPT_MEDIA = 64
"""Number of content types for which it is cached whether they are event streams. Engines use few."""
KEPT_NAME, KEPT_NAMES = 64, 1024
"""Maximum length of a header name whose classification is cached, and maximum number of such names; clients
may send any number of others."""
_CREDENTIAL = re.compile(rb"authorization|cookie|token|api-?key|secret|password|session|signature|assertion")
"""Words in the names of headers that identify a client, or a proxy in front of the gateway. Words are used,
and not a list of names, so that headers that login proxies add are not passed on either; an engine reads none
of them."""


def to_engine(
    headers: RawHeaders, request_id: str, *, traced: bool = False, key: bytes | None = None
) -> list[tuple[bytes, bytes]]:
    """Return the request headers for the engine: end-to-end headers without credentials, and the request id.

    `traced`: the client has a trace of its own, so its `tracestate` is passed on; each attempt adds its own
    `traceparent`. `key`: the gateway's own API key for engines.
    """
    passed = _end_to_end(headers, _stays_here if traced else _stays_here_untraced)
    passed.append((b"x-request-id", request_id.encode()))
    if key is not None:
        passed.append((b"authorization", b"Bearer " + key))
    return passed


class _Verdicts(dict[bytes, bool]):
    """Remembers, by the name of a header of a request, whether the gateway removes it."""

    def __init__(self, own: frozenset[bytes]) -> None:
        super().__init__()
        self._own = own

    def __missing__(self, name: bytes) -> bool:
        stays = name in self._own or is_credential(name)
        if len(name) <= KEPT_NAME:
            if len(self) >= KEPT_NAMES:
                self.clear()  # names that occur often are soon cached again
            self[name] = stays
        return stays


_stays_here = _Verdicts(_OWN_REQUEST).__getitem__
_stays_here_untraced = _Verdicts(_OWN_REQUEST | {b"tracestate"}).__getitem__


def is_credential(name: bytes) -> bool:
    """Return whether a header of this name, in lower case, identifies a client."""
    return _CREDENTIAL.search(name) is not None


def bearer(key: bytes) -> str:
    """Return the value of an Authorization header for `key`."""
    # The HTTP client encodes the text as UTF-8, so decoding from UTF-8 keeps the bytes unchanged.
    try:
        return "Bearer " + key.decode()
    except UnicodeDecodeError:
        return "Bearer " + key.decode("latin-1")


def to_client(headers: RawHeaders) -> list[tuple[bytes, bytes]]:
    """Return the end-to-end headers of the answer. The request middleware adds the request id."""
    return _end_to_end(headers, _OWN_RESPONSE.__contains__)


def is_event_stream(headers: RawHeaders) -> bool:
    """Return whether the body of an answer is an uncompressed stream of server-sent events."""
    media, encoded = b"", False
    for name, value in headers:
        if name == b"content-type":
            media = value
        elif name == b"content-encoding":
            encoded = True
    return not encoded and _is_of_events(media)


@functools.lru_cache(KEPT_MEDIA)
def _is_of_events(media: bytes) -> bool:
    return media.partition(b";")[0].strip().lower() == b"text/event-stream"


def _end_to_end(headers: RawHeaders, own: Callable[[bytes], bool]) -> list[tuple[bytes, bytes]]:
    kept: list[tuple[bytes, bytes]] = []
    named: set[bytes] | None = None
    for key, value in headers:
        name = key.lower()
        if not own(name):
            kept.append((name, value))
        elif name == b"connection":
            named = (named or set()) | {token.strip().lower() for token in value.split(b",")}
    return kept if named is None else [pair for pair in kept if pair[0] not in named]
