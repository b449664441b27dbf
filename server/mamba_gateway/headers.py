"""Headers: which pass through the gateway in each direction, with the two identifiers a request carries.

Pure; randomness is a parameter. Names are lower-case bytes, as ASGI has them.
"""

from random import Random

from mamba_edge.request_body import RawHeaders

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
"""RFC 9110 section 7.6.1: they speak of one connection, not of the message."""

# Made anew for the connection to the engine, or set by the gateway itself.
_OWN_REQUEST = frozenset((b"host", b"content-length", b"expect", b"x-request-id", b"traceparent"))
# Set by the server that answers.
_OWN_RESPONSE = frozenset((b"date", b"server", b"x-request-id"))


def new_traceparent(rng: Random) -> str:
    """A sampled W3C `traceparent` for a request outside of any trace (Trace Context, section 3.2)."""
    return f"00-{rng.getrandbits(128) | 1:032x}-{rng.getrandbits(64) | 1:016x}-01"


def to_engine(headers: RawHeaders, request_id: str, traceparent: str) -> list[tuple[str, str]]:
    """Request headers for the engine: end-to-end ones, with the two identifiers."""
    passed = [(key.decode("latin-1"), _text(value)) for key, value in _end_to_end(headers, _OWN_REQUEST)]
    return [*passed, ("x-request-id", request_id), ("traceparent", traceparent)]


def _text(value: bytes) -> str:
    # The client that sends it on encodes as UTF-8, so only from UTF-8 do the bytes stay what they are.
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def to_client(headers: RawHeaders) -> list[tuple[bytes, bytes]]:
    """Response headers for the client: the end-to-end ones; the request middleware adds the id."""
    return _end_to_end(headers, _OWN_RESPONSE)


def _end_to_end(headers: RawHeaders, own: frozenset[bytes]) -> list[tuple[bytes, bytes]]:
    lowered = [(key.lower(), value) for key, value in headers]
    named = {
        token.strip().lower() for key, value in lowered if key == b"connection" for token in value.split(b",")
    }
    dropped = HOP_BY_HOP | own | named
    return [(key, value) for key, value in lowered if key not in dropped]
