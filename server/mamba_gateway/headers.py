"""Headers: which pass through the gateway in each direction, and the two identifiers a request carries.

Pure; randomness is a parameter. Names are lower-case bytes, as ASGI has them.
"""

import re
from collections.abc import Iterable
from random import Random

RawHeaders = Iterable[tuple[bytes, bytes]]

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

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


def find(headers: RawHeaders, name: bytes) -> bytes | None:
    """The first value of a header, or None."""
    return next((value for key, value in headers if key.lower() == name), None)


def request_id(headers: RawHeaders, rng: Random) -> bytes:
    """The client's `X-Request-Id` if it is a plain token of at most 128 characters, else a new one."""
    given = find(headers, b"x-request-id")
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given
    return b"req-%032x" % rng.getrandbits(128)


def traceparent(headers: RawHeaders, rng: Random) -> bytes:
    """The client's W3C `traceparent` if it is valid, else a new sampled one (Trace Context, section 3.2)."""
    given = find(headers, b"traceparent")
    if given is not None and _TRACEPARENT.fullmatch(given):
        return given
    return b"00-%032x-%016x-01" % (rng.getrandbits(128) | 1, rng.getrandbits(64) | 1)


def to_engine(headers: RawHeaders, identifier: bytes, trace: bytes) -> list[tuple[str, str]]:
    """Request headers for the engine: end-to-end ones, with the two identifiers."""
    passed = _end_to_end(headers, _OWN_REQUEST)
    passed += [(b"x-request-id", identifier), (b"traceparent", trace)]
    return [(key.decode("latin-1"), _text(value)) for key, value in passed]


def _text(value: bytes) -> str:
    # The client that sends it on encodes as UTF-8, so only from UTF-8 do the bytes stay what they are.
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def to_client(headers: RawHeaders) -> list[tuple[bytes, bytes]]:
    """Response headers for the client: the end-to-end ones; `Identified` adds the identifier."""
    return _end_to_end(headers, _OWN_RESPONSE)


def _end_to_end(headers: RawHeaders, own: frozenset[bytes]) -> list[tuple[bytes, bytes]]:
    lowered = [(key.lower(), value) for key, value in headers]
    named = {
        token.strip().lower() for key, value in lowered if key == b"connection" for token in value.split(b",")
    }
    dropped = HOP_BY_HOP | own | named
    return [(key, value) for key, value in lowered if key not in dropped]
